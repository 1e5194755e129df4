import io
import shutil
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.conftest import in_another_process
from unibct.data.convert import convert
from unibct.data.decoding import image_suffix
from unibct.data.readers.record_format import (
    DamagedRecordError,
    RecordFile,
    pack_record,
    parse_record,
    read_index,
    write_record,
)
from unibct.data.readers.table import open_images
from unibct.errors import UserError
from unibct.progress import Silent

MAGIC = bytes.fromhex("0a23d7ce")


def written(*contents):
    file = io.BytesIO()
    offsets = [write_record(file, content) for content in contents]
    return file.getvalue(), offsets


def jpeg(value, size=112):
    file = io.BytesIO()
    Image.new("RGB", (size, size), (value, 40, 200 - value)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "0a23d7ce 00000000"),
        (b"abc", "0a23d7ce 03000000 61626300"),
        (MAGIC, "0a23d7ce 00000020 0a23d7ce 00000060"),
        (b"abcd" + MAGIC + b"xyz", "0a23d7ce 04000020 61626364 0a23d7ce 03000060 78797a00"),
        (b"a" + MAGIC + b"bcd", "0a23d7ce 08000000 61 0a23d7ce 626364"),
        (
            MAGIC + MAGIC,
            "0a23d7ce 00000020 0a23d7ce 00000040 0a23d7ce 00000060",
        ),
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
    assert (several.flag, several.labels.tolist(), several.payload) == (
        3,
        [5.0, 6.0, 7.0],
        b"image",
    )
    assert pack_record(b"image", [5.0, 6.0, 7.0], 3) == content
    with pytest.raises(DamagedRecordError, match="here: the record has 23 bytes"):
        parse_record(content[:23], "here")
    with pytest.raises(DamagedRecordError, match="announces 3 labels, and 4 bytes follow"):
        parse_record(content[:28], "here")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda d: b"\0" + d[1:], r"offset 0 has 0xced72300 where the magic 0xced7230a must be"),
        (lambda d: d[:4] + struct.pack("<I", 2 << 29 | 4) + d[8:], "begins with a middle part"),
        (lambda d: d[:4] + struct.pack("<I", 3 << 29 | 4) + d[8:], "begins with a last part"),
        (lambda d: d[:4] + struct.pack("<I", 5 << 29 | 4) + d[8:], "unknown part flag 5"),
        (lambda d: d[:4] + struct.pack("<I", 4000) + d[8:], "says 4000 bytes but the file has 64"),
        (
            lambda d: d[:4] + struct.pack("<I", 1 << 29 | 32) + d[8:],
            "offset 40 breaks off the record",
        ),
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


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A folder in InsightFace's layout, written from the page of the format, not by our writer."""
    root = tmp_path_factory.mktemp("ms1m")
    people = [3, 1, 2]
    contents, first = {}, 1
    ranges = []
    for person, count in enumerate(people):
        for key in range(first, first + count):
            header = struct.pack("<IfQQ", 0, person, key, 0)
            contents[key] = header + jpeg(10 * key)
        ranges.append((first, first + count))
        first += count
    for number, (begin, end) in enumerate(ranges):
        contents[first + number] = struct.pack("<IfQQff", 2, 0, 0, 0, begin, end)
    contents[0] = struct.pack("<IfQQff", 2, 0, 0, 0, first, first + len(people))
    index, data = [], b""
    for key, content in contents.items():  # key 0 last
        index.append(f"{key}\t{len(data)}\n")
        data += MAGIC + struct.pack("<I", len(content)) + content + bytes(-len(content) % 4)
    (root / "train.rec").write_bytes(data)
    (root / "train.idx").write_text("".join(reversed(index)))  # any order
    (root / "property").write_text("3,112,112")
    return root


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
    with pytest.raises(UserError, match="is not num_classes,height,width"):
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


def test_a_file_that_has_shrunk_since_gives_no_half_images(packed, tmp_path):
    data = (packed / "train.rec").read_bytes()
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    file = RecordFile(path)  # not mapped yet, as in a new worker process
    path.write_bytes(data[:500])
    with pytest.raises(DamagedRecordError, match=rf"has 500 bytes and had {len(data)} when"):
        file.payload(0)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (b"a\nb\nc", ("a", "b", "c")),  # by hand, without a last line break
        (b"a\nb\na\n", "names two classes 'a'; rename one"),
        (b"M\xfcller\nb\nc\n", "is not UTF-8 text"),
        (b"a\n", "has 1 lines, but a record has the label 2"),
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


def small_file():
    return written(
        pack_record(b"payload", 1.0, 1),
        pack_record(b"abcd" + MAGIC + b"xyz" + MAGIC, 2.0, 2),
        pack_record(b"", [1.0, 3.0], 3),
    )


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


def test_packing_and_unpacking_keeps_every_byte(photo_folder, tmp_path):
    source = open_images(photo_folder)
    assert convert(source, tmp_path / "rec", to="recordio") == len(source)
    packed = open_images(tmp_path / "rec")
    assert packed.class_names == source.class_names
    assert (packed.labels == source.labels).all()
    assert [packed.encoded(i) for i in packed.ids] == [source.encoded(i) for i in source.ids]
    convert(packed, tmp_path / "folder", to="folder")
    again = open_images(tmp_path / "folder")
    assert again.class_names == source.class_names

    def contents(images):
        return sorted(
            (int(c), images.encoded(i)) for i, c in zip(images.ids, images.labels, strict=True)
        )

    assert contents(again) == contents(source)
    for path in (tmp_path / "rec").iterdir():
        assert path.stat().st_mode & 0o444 == 0o444
    keys, offsets = read_index(tmp_path / "rec" / "train.idx")
    file = RecordFile(tmp_path / "rec" / "train.rec")
    head = file.record(int(offsets[0]))  # key 0: the range of the identities' keys
    first, end = head.labels.astype(int)
    assert (first, end) == (len(source) + 1, len(source) + 1 + len(source.class_names))
    at = dict(zip(keys.tolist(), offsets.tolist(), strict=True))
    for identity in range(len(source.class_names)):
        begin, stop = file.record(at[first + identity]).labels.astype(int)
        for key in range(begin, stop):
            assert file.record(at[key]).labels[0] == identity
    assert (tmp_path / "rec" / "property").read_text().startswith(f"{len(source.class_names)},")


def test_the_embedded_set_is_packed_as_png(glyph_classes, tmp_path):
    convert(glyph_classes, tmp_path / "rec", to="recordio")
    packed = open_images(tmp_path / "rec")
    for own, other in zip(glyph_classes.ids[:30], packed.ids[:30], strict=True):
        assert np.array_equal(packed.read(other), glyph_classes.read(own))


def test_what_cannot_be_converted_is_named_and_nothing_is_left(photo_folder, tmp_path):
    root = tmp_path / "photos"
    shutil.copytree(photo_folder, root)
    bad = min(root.rglob("*.png"))
    bad.write_bytes(b"no image")
    images = open_images(root)
    with pytest.raises(UserError, match=f"{bad.name}.*--skip-bad-images"):
        convert(images, tmp_path / "rec", to="recordio")
    assert not (tmp_path / "rec").exists()
    assert convert(images, tmp_path / "rec", to="recordio", skip_bad=True) == len(images) - 1
    with pytest.raises(UserError, match="unknown layout 'zip'; choose one of recordio, folder"):
        convert(images, tmp_path / "x", to="zip")
    with pytest.raises(UserError, match="exists already"):
        convert(images, tmp_path / "rec", to="recordio")


def test_a_first_image_that_cannot_be_decoded_stops_nothing(tmp_path):
    folder = tmp_path / "photos" / "one"
    folder.mkdir(parents=True)
    for name, data in (("a.jpg", jpeg(1)[:200]), ("b.jpg", jpeg(2, 20)), ("c.jpg", jpeg(3))):
        (folder / name).write_bytes(data)
    assert convert(open_images(folder.parent), tmp_path / "rec", to="recordio") == 3
    assert (tmp_path / "rec" / "property").read_text() == "1,20,20"


def test_more_images_than_exact_keys_are_refused_at_once(photo_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("unibct.data.convert._EXACT", 100)
    monkeypatch.setattr("unibct.data.convert.image_suffix", lambda _: pytest.fail("has begun"))
    with pytest.raises(UserError, match="above 100 the layout's float keys"):
        convert(open_images(photo_folder), tmp_path / "rec", to="recordio")


def test_names_that_lead_upwards_become_no_hidden_files(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "lists").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(jpeg(1))
    (tmp_path / "lists" / "l.txt").write_text("../images/a.jpg one\n")
    convert(open_images(tmp_path / "lists" / "l.txt"), tmp_path / "out", to="folder")
    assert open_images(tmp_path / "out").ids == ("one/_images_a.jpg",)


@pytest.fixture(scope="module")
def damaged_photos(photo_folder, tmp_path_factory):
    """The photos, and some files that are none: first, last, and between."""
    root = tmp_path_factory.mktemp("damaged") / "photos"
    shutil.copytree(photo_folder, root)
    paths = sorted(root.rglob("*.*"))
    for number in (0, 9, 40, 41, len(paths) - 1):
        paths[number].write_bytes(b"no image")
    return root


def files_of(folder):
    paths = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


class Notes(Silent):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.mark.parametrize("to", ["recordio", "folder"])
def test_an_interrupted_conversion_goes_on(to, damaged_photos, tmp_path, monkeypatch):
    images = open_images(damaged_photos)
    convert(images, tmp_path / "whole", to=to, skip_bad=True)
    whole = files_of(tmp_path / "whole")
    monkeypatch.setattr("unibct.data.convert._SAVED", 7)
    seen = []

    def stop_after(count):
        def looked_at(data):
            seen.append(data)
            if len(seen) > count:
                raise KeyboardInterrupt
            return image_suffix(data)

        seen.clear()
        monkeypatch.setattr("unibct.data.convert.image_suffix", looked_at)

    out = tmp_path / "out"
    for count in (3, 10, 33, 41, 0, 60):  # after 0, 7, 35, 70, 70 and 126 images in all
        stop_after(count)
        with pytest.raises(KeyboardInterrupt):
            convert(images, out, to=to, skip_bad=True)
        assert not out.exists()
    stop_after(len(images))
    notes = Notes()
    assert convert(images, out, to=to, skip_bad=True, progress=notes) == len(images) - 5
    assert len(seen) == len(images) - 126
    assert notes.lines[0] == "going on after 126 images of an earlier run"
    assert notes.lines[1].startswith("left out 5 unreadable images: class 00/0000.png (not a")
    assert files_of(out) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]


def interrupted(images, out, monkeypatch, saved=5, after=20):
    count = iter(range(after))
    with monkeypatch.context() as patch, pytest.raises(StopIteration):
        patch.setattr("unibct.data.convert._SAVED", saved)
        patch.setattr(
            "unibct.data.convert.image_suffix", lambda data: (next(count), image_suffix(data))[1]
        )
        convert(images, out, to="recordio")


@pytest.mark.parametrize("change", ["source", "layout", "partial"])
def test_a_conversion_of_something_else_starts_anew(change, photo_folder, tmp_path, monkeypatch):
    root = tmp_path / "photos"
    shutil.copytree(photo_folder, root)
    out = tmp_path / "out"
    interrupted(open_images(root), out, monkeypatch)
    to = "folder" if change == "layout" else "recordio"
    if change == "source":
        first = min(root.rglob("*.png"))
        first.write_bytes(png_of(first))  # the same name, other bytes
    if change == "partial":
        (tmp_path / ".out.partial" / "data" / "train.rec").write_bytes(b"short")
    notes = Notes()
    convert(open_images(root), out, to=to, progress=notes)
    assert notes.lines == ["what an earlier run has read may have changed since: starting anew"]
    convert(open_images(root), tmp_path / "whole", to=to)
    assert files_of(out) == files_of(tmp_path / "whole")


def png_of(path):
    file = io.BytesIO()
    Image.open(path).rotate(90).save(file, "PNG")
    return file.getvalue()


def test_two_conversions_at_once_are_refused(photo_folder, tmp_path, monkeypatch):
    images = open_images(photo_folder)
    interrupted(images, tmp_path / "out", monkeypatch)
    with (
        FileLock(tmp_path / ".out.partial" / "lock"),
        pytest.raises(UserError, match="another process is writing"),
    ):
        convert(images, tmp_path / "out", to="recordio")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="current folder"):
        convert(images, tmp_path / "here", to="recordio")


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from unibct.data import convert, resumable_folder
from unibct.data.decoding import image_suffix
from unibct.data.readers.table import open_images

module, name, calls = {"convert": convert, "resumable": resumable_folder}[sys.argv[4]], *sys.argv[5:]
real, left = getattr(module, name), int(calls)

def killed(*arguments):
    global left
    left -= 1
    if left < 0:
        if name == "write_record":  # within a record
            arguments[0].write(arguments[1][:30])
            arguments[0].flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(module, name, killed)
convert._SAVED = 7
convert.convert(open_images(sys.argv[1]), Path(sys.argv[2]), to=sys.argv[3], skip_bad=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "places"),
    [
        ("recordio", ["write_record 0", "write_record 40", "write_record 60", "_shape 0"]),
        ("recordio", ["write_json 0", "write_json 5", "image_suffix 99", "atomic_folder 0"]),
        ("folder", ["image_suffix 30", "image_suffix 90", "write_json 3", "atomic_folder 0"]),
    ],
)
def test_a_killed_conversion_goes_on_to_the_byte(to, places, damaged_photos, tmp_path):
    images = open_images(damaged_photos)
    convert(images, tmp_path / "whole", to=to, skip_bad=True)
    out = tmp_path / "out"
    for place in places:
        name, calls = place.split()
        module = "convert" if name in ("write_record", "_shape", "image_suffix") else "resumable"
        arguments = [damaged_photos, out, to, module, name, calls]
        command = [sys.executable, "-c", KILLED_AT, *map(str, arguments)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert not out.exists()
    notes = Notes()
    convert(images, out, to=to, skip_bad=True, progress=notes)
    assert notes.lines[0].startswith("going on after ")
    assert files_of(out) == files_of(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]
