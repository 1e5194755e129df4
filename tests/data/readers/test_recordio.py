import struct

import numpy as np
import pytest

from tests.conftest import in_another_process
from tests.data.example_images import jpeg
from tests.data.readers.example_records import MAGIC, written
from unibct.data.readers.record_format import DamagedRecordError, pack_record
from unibct.data.readers.table import open_images
from unibct.errors import UserError


def test_insightface_layout(packed):
    for name in (packed, packed / "train.rec", f"recordio:{packed}"):
        images = open_images(name)
        assert images.ids == ("0/1", "0/2", "0/3", "1/4", "2/5", "2/6")
        assert images.labels.tolist() == [0, 0, 0, 1, 2, 2]
        assert images.class_names == ("0", "1", "2")
        assert images.encoded("1/4") == jpeg(40)
        assert images.read("2/6").shape == (112, 112, 3)


def test_keys_may_have_gaps(packed, tmp_path):
    (tmp_path / "train.rec").write_bytes((packed / "train.rec").read_bytes())
    lines = (packed / "train.idx").read_text().splitlines(keepends=True)
    (tmp_path / "train.idx").write_text("".join(x for x in lines if x.split()[0] not in "24"))
    images = open_images(tmp_path)
    assert images.ids == ("0/1", "0/3", "2/5", "2/6")
    assert [images.encoded(i) for i in images.ids] == [jpeg(10 * key) for key in (1, 3, 5, 6)]


def test_it_goes_to_other_processes_without_its_file_handle(packed):
    images = open_images(packed)
    assert images.encoded("1/4") == jpeg(40)  # mapped here
    assert in_another_process(images.encoded, "1/4") == jpeg(40)
    assert np.array_equal(in_another_process(images.read, "2/6"), images.read("2/6"))


def test_without_its_index_a_file_has_the_same_ids(packed, tmp_path):
    (tmp_path / "train.rec").write_bytes((packed / "train.rec").read_bytes())
    indexed, scanned = open_images(f"recordio:{packed}"), open_images(f"recordio:{tmp_path}")
    assert scanned.ids == indexed.ids
    image_id = indexed.ids[-1]
    assert np.array_equal(scanned.read(image_id), indexed.read(image_id))


def test_without_an_index_and_without_identities_every_record_is_an_image(packed, tmp_path):
    data = (packed / "train.rec").read_bytes()
    (tmp_path / "a.rec").write_bytes(data)
    assert open_images(tmp_path).labels.tolist() == [0, 0, 0, 1, 2, 2]  # key 0 stands at the end
    plain, _ = written(*(pack_record(jpeg(v), float(v % 2), v) for v in range(5)))
    (tmp_path / "b.rec").write_bytes(plain)
    assert open_images(tmp_path / "b.rec").labels.tolist() == [0, 1, 0, 1, 0]
    with pytest.raises(UserError, match=r"has 2 RecordIO files \(a.rec, b.rec\)"):
        open_images(tmp_path)


def test_labels_behind_the_header_and_split_records(tmp_path):
    spoilt_id = struct.unpack("<Q", MAGIC + MAGIC)[0]  # the magic within the header splits it
    split = struct.pack("<IfQQ", 0, 9.0, spoilt_id, 0) + jpeg(3)
    data, offsets = written(
        pack_record(jpeg(1), [4.0, 0.5], 1), split, pack_record(jpeg(2), 4.0, 2)
    )
    assert data[offsets[1] + 7] >> 5 == 1
    (tmp_path / "a.rec").write_bytes(data)
    images = open_images(tmp_path)
    assert images.class_names == ("4", "9")
    assert images.labels.tolist() == [0, 1, 0]
    assert [images.encoded(i) for i in images.ids] == [jpeg(1), jpeg(3), jpeg(2)]


@pytest.mark.parametrize(
    ("index", "match"),
    [
        ("1\t0\nx\t9\n", r"train.idx, line 2: 'x\\t9' is not key<tab>offset"),
        ("1 0 7\n", "line 1"),
        ("", "lists no record"),
        ("1\t0\n1\t8\n", "lists key 1 twice"),
        ("1\t4\n", r"train.rec is damaged: offset 4 has .* is train.idx the index of this file\?"),
        ("1\t99999999\n", "offset 99999999 is past the end of the file"),
        ("1\t-8\n", "offset -8 is past the end"),
        ("1\t9223372036854775805\n", "offset 9223372036854775805 is past the end"),
        ("1\t99999999999999999999999\n", "is past the end"),
        ("-1\t0\n", "lists key -1; keys count from 0 up"),
    ],
)
def test_a_bad_index_is_refused(packed, tmp_path, index, match):
    (tmp_path / "train.rec").write_bytes((packed / "train.rec").read_bytes())
    (tmp_path / "train.idx").write_text(index)
    with pytest.raises(UserError, match=match):
        open_images(tmp_path)


def test_bad_labels_and_properties_are_refused(packed, tmp_path):
    for label, match in (
        (0.5, "the label 0.5; a class is a whole"),
        (-1.0, "label -1"),
        (np.nan, "nan"),
        (1e30, "a whole number from 0 to 16777216"),
        (2.0**25, "label 33554432"),
    ):
        data, _ = written(pack_record(jpeg(1), label, 1))
        (tmp_path / "a.rec").write_bytes(data)
        with pytest.raises(UserError, match=match):
            open_images(tmp_path)
    (tmp_path / "a.rec").write_bytes((packed / "train.rec").read_bytes())
    (tmp_path / "property").write_text("2,112,112")
    with pytest.raises(UserError, match="says 2 classes, but a record has the label 2"):
        open_images(tmp_path)
    (tmp_path / "property").write_text("many")
    with pytest.raises(UserError, match="does not begin with a line num_classes,height,width"):
        open_images(tmp_path)


@pytest.mark.parametrize(
    "text", ["3,112,112\n\n", "3,112,112\n85742\n5822653\n", "3, 112, 112 \r\n1"]
)
def test_of_a_property_file_the_first_line_counts(packed, tmp_path, text):
    (tmp_path / "a.rec").write_bytes((packed / "train.rec").read_bytes())
    (tmp_path / "property").write_text(text)
    assert len(open_images(tmp_path)) == 6
    (tmp_path / "property").write_text("2" + text[1:])
    with pytest.raises(UserError, match="says 2 classes"):
        open_images(tmp_path)


def test_a_record_that_is_cut_off_is_found_when_the_file_is_opened(tmp_path):
    data, _ = written(pack_record(jpeg(1), [5.0], 1))
    (tmp_path / "a.idx").write_text("1\t0\n")
    for size in (9, 12, 33, 38, len(data) - 4):
        (tmp_path / "a.rec").write_bytes(data[:size])
        with pytest.raises(UserError, match=r"offset 0 says \d+ bytes but the file has"):
            open_images(tmp_path)


def test_without_an_index_none_is_blamed(tmp_path):
    for data, match in ((b"", "a.rec is empty$"), (written(b"abc")[0], "header alone takes 24$")):
        (tmp_path / "a.rec").write_bytes(data)
        with pytest.raises(DamagedRecordError, match=match):
            open_images(tmp_path)


def test_class_numbers_are_those_of_one_file(packed, tmp_path):
    """Without names an identity is the file and the number; a copy is the same file."""
    first = open_images(packed)
    assert first.class_source is not None
    assert first.class_identities[1] == f"1 of {first.class_source}"
    assert first.select([0, 5]).class_source == first.class_source
    data = (packed / "train.rec").read_bytes()
    for folder, content in (("copy", data), ("other", data[:-5] + bytes(1) + data[-4:])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "renamed.rec").write_bytes(content)
    copy, other = (open_images(tmp_path / folder) for folder in ("copy", "other"))
    assert copy.class_identities == first.class_identities
    assert other.class_names == first.class_names
    assert not set(other.class_identities) & set(first.class_identities)
    (tmp_path / "copy/classes.txt").write_text("a\nb\nc\n")
    named = open_images(tmp_path / "copy")
    assert named.class_source is None
    assert named.class_identities == ("a", "b", "c")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (b"a\nb\nc", ("a", "b", "c")),  # by hand, without a last line break
        (b"a\nb\na\n", "names two classes 'a'; rename one"),
        (b"M\xfcller\nb\nc\n", "is not UTF-8 text"),
        (b"a\n", "has 1 lines, but there is a class 2"),
    ],
)
def test_class_names_beside_the_file(packed, tmp_path, names, expected):
    (tmp_path / "train.rec").write_bytes((packed / "train.rec").read_bytes())
    (tmp_path / "classes.txt").write_bytes(names)
    if isinstance(expected, tuple):
        assert open_images(tmp_path).class_names == expected
    else:
        with pytest.raises(UserError, match=rf"classes.txt {expected}"):
            open_images(tmp_path)
