import tarfile

import pytest

from tests.data.example_images import png
from tests.data.readers.example_tars import png_members, write_tar
from unibct.data.readers.table import open_images
from unibct.errors import UserError


def test_a_damaged_header_within_a_shard_drops_no_samples_silently(tmp_path):
    path = tmp_path / "s.tar"
    write_tar(path, png_members(4))
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        offset = tar.getmembers()[4].offset
    for spoilt in (whole[: offset + 3] + b"?" + whole[offset + 4 :], whole[: offset + 100]):
        path.write_bytes(spoilt)
        with pytest.raises(UserError, match=f"s.tar is damaged: offset {offset} is no tar header"):
            open_images(path)
    path.write_bytes(whole[:-1024])  # some writers leave the zeros at the end out
    assert len(open_images(path)) == 4


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("1.json", b'{"label": "cat"}'), ("1.cls", b"3")], "3"),  # in either order
        ([("1.cls", b"3"), ("1.json", b'{"label": "cat"}')], "3"),
        ([("1.cls", b"3"), ("1.json", b"[]")], "3"),
        ([("1.cls", b"3"), ("1.cls", b"4")], r"^\S*s.tar: sample '1' has '1.cls' twice"),
        ([("1.cls", b"a\rb")], r"^\S*s.tar: 1.cls is not one number or word"),
        ([("1.cls", b"")], "1.cls is not one number or word"),
        ([("1.cls", b"\xff")], "1.cls cannot be read as a label"),
        ([("1.json", b'{"label": "a\\nb"}')], "1.json is not one number or word"),
        ([("1.json", b'{"label": 0.5}')], "a 1.json whose label is a whole number or a word"),
        ([("1.json", b"[" * 100_000)], "1.json cannot be read as a label"),
        ([("1.cls", b"1" * 5000)], "1" * 5000),
        ([("1.json", b" " * (1 << 24) + b"{}")], "too long for a label"),
    ],
)
def test_labels_of_samples(members, expected, tmp_path):
    path = tmp_path / "s.tar"
    write_tar(path, [("1.png", png(1)), *members])
    if expected.isdecimal():
        assert open_images(path).class_names == (expected,)
    else:
        with pytest.raises(UserError, match=expected):
            open_images(path)


def test_links_and_negative_sizes_within_shards(tmp_path):
    path = tmp_path / "s.tar"
    link = tarfile.TarInfo("2.png")
    link.type, link.linkname = tarfile.LNKTYPE, "1.png"
    with tarfile.open(path, "w") as tar:
        tar.addfile(link)
    with pytest.raises(
        UserError, match=r"s.tar: '2.png' is not a plain file; pack the file itself"
    ):
        open_images(path)
    endless = tarfile.TarInfo("1.txt")
    endless.size = -512
    path.write_bytes(endless.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UserError, match=r"is cut off within '1.txt'"):
        open_images(path)
