import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import in_another_process
from tests.data.example_images import jpeg
from tests.data.readers.example_records import MAGIC, small_file, written
from unibct.data.readers import open_images
from unibct.data.readers.recordio import DamagedRecordError, RecordFile, pack_record, parse_record
from unibct.errors import UserError


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "0a23d7ce 00000000"),
        (b"abc", "0a23d7ce 03000000 61626300"),
        (MAGIC, "0a23d7ce 00000020 0a23d7ce 00000060"),
        (b"abcd" + MAGIC + b"xyz", "0a23d7ce 04000020 61626364 0a23d7ce 03000060 78797a00"),
        (b"a" + MAGIC + b"bcd", "0a23d7ce 08000000 61 0a23d7ce 626364"),
        (MAGIC + MAGIC, "0a23d7ce 00000020 0a23d7ce 00000040 0a23d7ce 00000060"),
    ],
)
def test_bytes_as_mxnet_writes_them(content, expected, tmp_path):
    data, offsets = written(content)
    assert data.hex() == expected.replace(" ", "")
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    assert RecordFile(path).read(offsets[0]) == content
    assert list(RecordFile(path).scan()) == [0]


pieces = st.lists(st.one_of(st.binary(max_size=9), st.just(MAGIC)), max_size=6).map(b"".join)


@given(st.lists(pieces, min_size=1, max_size=5))
def test_whatever_is_written_is_read_back(tmp_path_factory, contents):
    data, offsets = written(*contents)
    path = tmp_path_factory.mktemp("rec") / "a.rec"
    path.write_bytes(data)
    file = RecordFile(path)
    assert [file.read(offset) for offset in offsets] == contents
    for offset, content in zip(offsets, contents, strict=True):
        if len(content) >= 24 and content[:4] == bytes(4):  # a header whose label stands in it
            assert file.payload(offset) == content[24:]
    assert list(file.scan()) == offsets


def test_labels_in_the_header_and_after_it():
    one = parse_record(pack_record(b"image", 7.0, 3), "here")
    assert (one.flag, one.labels.tolist(), one.payload) == (0, [7.0], b"image")
    content = struct.pack("<IfQQ", 3, 0.0, 3, 0) + struct.pack("<3f", 5, 6, 7) + b"image"
    several = parse_record(content, "here")
    assert (several.flag, several.payload) == (3, b"image")
    assert several.labels.tolist() == [5, 6, 7]
    assert pack_record(b"image", [5.0, 6.0, 7.0], 3) == content
    with pytest.raises(DamagedRecordError, match="here: the record has 23 bytes"):
        parse_record(content[:23], "here")
    with pytest.raises(DamagedRecordError, match="announces 3 labels, and 4 bytes follow"):
        parse_record(content[:28], "here")


def with_length(word):
    """Damage that writes another length and part flag into the first header."""
    return lambda data: data[:4] + struct.pack("<I", word) + data[8:]


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda d: b"\0" + d[1:], r"offset 0 has 0xced72300 where the magic 0xced7230a must be"),
        (with_length(2 << 29 | 4), "begins with a middle part"),
        (with_length(3 << 29 | 4), "begins with a last part"),
        (with_length(5 << 29 | 4), "unknown part flag 5"),
        (with_length(4000), "says 4000 bytes but the file has 64"),
        (with_length(1 << 29 | 32), "offset 40 breaks off the record"),
        (lambda d: d[:6], "offset 0 is past the end of the file"),
    ],
)
def test_damage_is_named_with_its_offset(spoil, match, tmp_path):
    data, _ = written(pack_record(b"image..1", 1.0, 1), pack_record(b"", 2.0, 2))
    path = tmp_path / "a.rec"
    path.write_bytes(spoil(data))
    with pytest.raises(DamagedRecordError, match=match) as caught:
        RecordFile(path).read(0)
    assert str(path) in str(caught.value)


def test_a_chain_of_parts_without_end_ends_with_the_file(tmp_path):
    path = tmp_path / "a.rec"
    part = MAGIC + struct.pack("<I", 2 << 29)
    path.write_bytes(MAGIC + struct.pack("<I", 1 << 29) + 1000 * part)
    with pytest.raises(DamagedRecordError, match=r"offset 8008 is past the end .* began at 0"):
        RecordFile(path).read(0)


def test_a_file_that_has_shrunk_since_gives_no_half_images(packed, tmp_path):
    data = (packed / "train.rec").read_bytes()
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    file = RecordFile(path)  # not mapped yet, as in a new worker process
    path.write_bytes(data[:500])
    with pytest.raises(DamagedRecordError, match=rf"has 500 bytes and had {len(data)} when"):
        file.payload(0)


def test_every_truncation_reads_whole_records_or_says_what_is_wrong(tmp_path):
    data, offsets = small_file()
    whole = [pack_record(b"payload", 1.0, 1), pack_record(b"abcd" + MAGIC + b"xyz" + MAGIC, 2.0, 2),
             pack_record(b"", [1.0, 3.0], 3)]  # fmt: skip
    ends = [*offsets[1:], len(data)]
    path = tmp_path / "a.rec"
    for size in range(1, len(data)):
        path.write_bytes(data[:size])
        file = RecordFile(path)
        for offset, end, content in zip(offsets, ends, whole, strict=True):
            if size >= end:
                assert file.read(offset) == content
            elif size >= offset + 8 and _unpadded(data, offset, end) <= size:
                assert file.read(offset) == content  # only the padding is cut
            else:
                with pytest.raises(DamagedRecordError, match="offset"):
                    file.read(offset)
        read_or_refused(path)


def _unpadded(data, offset, end):
    """Where a record's last part ends without its padding."""
    place = offset
    while True:
        length = struct.unpack_from("<I", data, place + 4)[0] & ((1 << 29) - 1)
        last = place + 8 + length
        place = place + 8 + -(-length // 4) * 4
        if place >= end:
            return last


def read_or_refused(path):
    try:
        images = open_images(f"recordio:{path}")
        for image_id in images.ids:
            images.encoded(image_id)
    except UserError as error:
        assert str(path.parent) in str(error)  # noqa: PT017


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutations_are_read_or_refused_and_never_hang(tmp_path_factory, changes):
    data, _ = small_file()
    spoilt = bytearray(data)
    for place, value in changes:
        spoilt[place % len(spoilt)] = value
    path = tmp_path_factory.mktemp("fuzz") / "a.rec"
    path.write_bytes(bytes(spoilt))
    read_or_refused(path)


@pytest.fixture
def copied(packed, tmp_path):
    """Copies the file, with other files beside it in the place of its own; returns the folder."""

    def copy(**beside):
        (tmp_path / "train.rec").write_bytes((packed / "train.rec").read_bytes())
        for name, content in beside.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return copy


def test_insightface_layout(packed):
    for name in (packed, packed / "train.rec", f"recordio:{packed}"):
        images = open_images(name)
        assert images.ids == ("0/1", "0/2", "0/3", "1/4", "2/5", "2/6")
        assert images.labels.tolist() == [0, 0, 0, 1, 2, 2]
        assert images.class_names == ("0", "1", "2")
        assert images.encoded("1/4") == jpeg(40)
        assert images.read("2/6").shape == (112, 112, 3)


def test_keys_may_have_gaps(packed, copied):
    lines = (packed / "train.idx").read_bytes().splitlines(keepends=True)
    index = b"".join(x for x in lines if x.split()[0] not in b"24")
    images = open_images(copied(**{"train.idx": index}))
    assert images.ids == ("0/1", "0/3", "2/5", "2/6")
    assert [images.encoded(i) for i in images.ids] == [jpeg(10 * key) for key in (1, 3, 5, 6)]


def test_it_goes_to_other_processes_without_its_file_handle(packed):
    images = open_images(packed)
    assert images.encoded("1/4") == jpeg(40)  # mapped here
    assert in_another_process(images.encoded, "1/4") == jpeg(40)
    assert np.array_equal(in_another_process(images.read, "2/6"), images.read("2/6"))


def test_without_its_index_a_file_has_the_same_ids(packed, copied):
    indexed, scanned = open_images(f"recordio:{packed}"), open_images(f"recordio:{copied()}")
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
    first, last = pack_record(jpeg(1), [4.0, 0.5], 1), pack_record(jpeg(2), 4.0, 2)
    data, offsets = written(first, split, last)
    assert data[offsets[1] + 7] >> 5 == 1
    (tmp_path / "a.rec").write_bytes(data)
    images = open_images(tmp_path)
    assert images.class_names == ("4", "9")
    assert images.labels.tolist() == [0, 1, 0]
    assert [images.encoded(i) for i in images.ids] == [jpeg(1), jpeg(3), jpeg(2)]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("train.idx", b"1\t0\nx\t9\n", r"train.idx, line 2: 'x\\t9' is not key<tab>offset"),
        ("train.idx", b"1 0 7\n", "line 1"),
        ("train.idx", b"", "lists no record"),
        ("train.idx", b"1\t0\n1\t8\n", "lists key 1 twice"),
        ("train.idx", b"1\t4\n", "train.rec is damaged: offset 4 has .* is train.idx the index of"),
        ("train.idx", b"1\t99999999\n", "offset 99999999 is past the end of the file"),
        ("train.idx", b"1\t-8\n", "offset -8 is past the end"),
        ("train.idx", b"1\t9223372036854775805\n", "offset 9223372036854775805 is past the end"),
        ("train.idx", b"1\t99999999999999999999999\n", "is past the end"),
        ("train.idx", b"-1\t0\n", "lists key -1; keys count from 0 up"),
        ("property", b"2,112,112", "says 2 classes, but a record has the label 2"),
        ("property", b"2,112,112\n85742\n5822653\n", "says 2 classes"),  # the first line counts
        ("property", b"2, 112, 112 \r\n1", "says 2 classes"),
        ("property", b"many", "does not begin with a line num_classes,height,width"),
        ("classes.txt", b"a\nb\na\n", "classes.txt names two classes 'a'; rename one"),
        ("classes.txt", b"M\xfcller\nb\nc\n", "classes.txt is not UTF-8 text"),
        ("classes.txt", b"a\n", "classes.txt has 1 lines, but there is a class 2"),
    ],
)
def test_a_bad_file_beside_is_refused(copied, name, content, match):
    with pytest.raises(UserError, match=match):
        open_images(copied(**{name: content}))


def test_of_a_property_file_the_first_line_counts_and_class_names_stand_beside(copied):
    for text in (b"3,112,112\n\n", b"3,112,112\n85742\n", b"3, 112, 112 \r\n1"):
        assert len(open_images(copied(property=text))) == 6
    images = open_images(copied(**{"classes.txt": b"a\nb\nc"}))  # by hand, without a line break
    assert images.class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("label", "match"),
    [
        (0.5, "the label 0.5; a class is a whole"),
        (-1.0, "label -1"),
        (np.nan, "nan"),
        (1e30, "a whole number from 0 to 16777216"),
        (2.0**25, "label 33554432"),
    ],
)
def test_bad_labels_are_refused(tmp_path, label, match):
    (tmp_path / "a.rec").write_bytes(written(pack_record(jpeg(1), label, 1))[0])
    with pytest.raises(UserError, match=match):
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
