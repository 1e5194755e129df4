import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.readers.example_records import MAGIC, small_file, written
from unibct.data.readers.record_format import (
    DamagedRecordError,
    RecordFile,
    pack_record,
    parse_record,
)
from unibct.data.readers.table import open_images
from unibct.errors import UserError


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
