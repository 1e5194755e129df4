import io
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests.conftest import in_another_process
from unibct import cli
from unibct.data.decoding import UnreadableImageError, decode
from unibct.data.loader import read_pixels
from unibct.data.readers.table import READERS, open_images
from unibct.errors import UserError


def png(value):
    file = io.BytesIO()
    Image.new("L", (8, 8), value).save(file, "PNG")
    return file.getvalue()


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_list_file(tmp_path):
    (tmp_path / "some faces").mkdir()
    for number in range(4):
        (tmp_path / "some faces" / f"{number}.png").write_bytes(png(number))
    path = tmp_path / "list.txt"
    path.write_text(
        "# path label\nsome faces/3.png 10\nsome faces/0.png\t2\n\nsome faces/1.png  10\r\n"
    )
    for name in (path, f"list:{path}"):
        images = open_images(name)
        assert images.ids == ("some faces/3.png", "some faces/0.png", "some faces/1.png")
        assert images.class_names == ("2", "10")  # numbers in their order
        assert images.labels.tolist() == [1, 0, 1]
        assert images.read("some faces/3.png")[0, 0] == 3
        assert images.encoded("some faces/3.png") == png(3)
    path.write_text("some faces/0.png one\nsome faces/9.png two\n")
    with pytest.raises(UserError, match=r"1 unreadable image: some faces/9.png \(No such file"):
        read_pixels(open_images(path), 8, 8, 1)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a.png 1\nb.png\n", r"line 2: 'b.png' is not `path label`"),
        ("a.png 1\na.png 2\n", r"line 2: 'a.png' is listed twice"),
        ("# nothing\n", "lists no image"),
        ("0\t4\ta.png\n", r"line 1: '0\\t4\\ta.png' has more columns than `path label`"),
        ("a\0b.png 1\n", "a zero byte in its name"),
    ],
)
def test_bad_lists(text, match, tmp_path):
    (tmp_path / "l.txt").write_text(text)
    with pytest.raises(UserError, match=match):
        open_images(tmp_path / "l.txt")


@pytest.fixture
def shards(tmp_path):
    write_tar(
        tmp_path / "s-00.tar",
        [
            ("a/0001.png", png(1)),
            ("a/0001.cls", b"7\n"),
            ("a/0001.pyd", pickle.dumps(print)),  # never opened
            ("0002.json", b'{"label": "cat", "caption": "x"}'),
            ("0002.png", png(2)),
            ("0002.seg.png", png(99)),  # of another kind: not the sample's image
            ("0003.txt", b"a caption without an image"),
        ],
    )
    write_tar(tmp_path / "s-01.tar", [("0001.PNG", png(3)), ("0001.cls", b"7")])
    return tmp_path


def test_webdataset_shards(shards):
    for name in (shards, f"{shards}/s-{{00..01}}.tar", f"webdataset:{shards}"):
        images = open_images(name)
        assert images.ids == ("s-00/a/0001", "s-00/0002", "s-01/0001")
        assert images.class_names == ("7", "cat")
        assert images.labels.tolist() == [0, 1, 0]
        assert [int(images.read(i)[0, 0]) for i in images.ids] == [1, 2, 3]
    assert images.encoded("s-00/0002") == png(2)
    assert in_another_process(images.encoded, "s-01/0001") == png(3)
    assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)


def test_bad_shards(shards, tmp_path):
    with pytest.raises(UserError, match=r"names 3 files, but .*s-02.tar is not there"):
        open_images(f"{shards}/s-{{00..02}}.tar")
    with pytest.raises(UserError, match=r"nothing\.tar is not there"):
        open_images(tmp_path / "nothing.tar")
    whole = (shards / "s-00.tar").read_bytes()
    path = tmp_path / "cut.tar"
    for size in range(0, len(whole), 64):
        path.write_bytes(whole[:size])
        try:
            images = open_images(path)
        except UserError as error:
            assert "cut.tar" in str(error)  # noqa: PT017
        else:  # cut between two members: the samples before it are whole
            assert all(images.read(i).shape == (8, 8) for i in images.ids)
    write_tar(path, [("1.png", png(1))])
    with pytest.raises(UserError, match=r"'1' has an image but no label; add 1.cls"):
        open_images(path)
    write_tar(path, [("1.png", png(1)), ("1.jpg", png(1)), ("1.cls", b"0")])
    with pytest.raises(UserError, match="'1' has two images"):
        open_images(path)
    write_tar(path, [("1.png", png(1)), ("1.json", b"{")])
    with pytest.raises(UserError, match=r"1.json cannot be read as a label"):
        open_images(path)
    write_tar(path, [("1.txt", b"1")])
    with pytest.raises(UserError, match="holds no image"):
        open_images(path)
    with tarfile.open(tmp_path / "packed.tar", "w:gz") as tar:
        tar.add(shards / "s-01.tar", arcname="1.png")
    with pytest.raises(UserError, match="cannot be read as an uncompressed tar file"):
        open_images(tmp_path / "packed.tar")


def test_what_is_not_recognised_can_be_said(tmp_path, photo_folder):
    with pytest.raises(UserError, match=r"nowhere is not there; DATA is one of.*\(recordio:\)"):
        open_images("nowhere")
    path = tmp_path / "labels.of.images"
    path.write_text(f"{min(photo_folder.rglob('*.png'))} one\n")
    with pytest.raises(UserError, match="is of no known kind"):
        open_images(path)
    assert len(open_images(f"list:{path}")) == 1
    assert len(open_images(f"folder:{photo_folder}")) == len(open_images(photo_folder))
    assert set(READERS) == {"recordio", "webdataset", "list", "folder", "glyphs"}


def test_every_command_takes_every_kind(photo_folder, tmp_path, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.main([str(a) for a in arguments])
        return stop.value.code

    assert run("convert", photo_folder, "--to", "recordio", "--out", tmp_path / "rec") == 0
    split = ("--scenario", "open-class", "--out")
    assert run("split", tmp_path / "rec", *split, tmp_path / "split") == 0
    lists = [(tmp_path / "split" / f"{n}.txt").read_text().split("\n")[:-1] for n in ("old", "new")]
    assert sum(map(len, lists)) == len(open_images(photo_folder))
    chosen = open_images(tmp_path / "rec", tmp_path / "split" / "old.txt")
    assert chosen.ids == tuple(lists[0])
    pixels = read_pixels(chosen, 32, 32, 1)
    assert np.array_equal(pixels.images.labels, chosen.labels)
    capsys.readouterr()
    assert run("convert", tmp_path / "nothing", "--to", "folder", "--out", tmp_path / "x") == 2
    assert "is not there; DATA is one of" in capsys.readouterr().err


def png_members(count):
    return [(f"{i}.{kind}", png(i) if kind == "png" else b"1") for i in range(count)
            for kind in ("png", "cls")]  # fmt: skip


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
        UserError, match=r"s.tar: '2.png' is a link or the like; pack the file itself"
    ):
        open_images(path)
    endless = tarfile.TarInfo("1.txt")
    endless.size = -512
    path.write_bytes(endless.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UserError, match=r"is cut off within '1.txt'"):
        open_images(path)


def test_more_shards_than_a_process_may_hold_open(tmp_path):
    resource = pytest.importorskip("resource")
    for number in range(100):
        write_tar(tmp_path / f"{number:03}.tar", [("1.png", png(number)), ("1.cls", b"1")])
    images = open_images(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        assert [images.encoded(i) for i in images.ids] == [png(n) for n in range(100)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_shard_that_changes_under_way_is_an_unreadable_image(shards):
    images = open_images(shards / "s-01.tar")
    (shards / "s-01.tar").write_bytes(b"")
    with pytest.raises(UnreadableImageError, match="is shorter than when it was opened"):
        images.encoded("s-01/0001")
    (shards / "s-01.tar").unlink()
    with pytest.raises(UnreadableImageError, match=r"s-01.tar: No such file"):
        images.encoded("s-01/0001")


def test_classes_named_like_files_are_folders(tmp_path):
    for name in ("x.tar", "y.rec"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png(1))
    assert open_images(tmp_path).class_names == ("x.tar", "y.rec")


def test_a_small_jpeg_that_says_it_is_huge_is_not_decoded():
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = (60000).to_bytes(2, "big") * 2
    with pytest.raises(UnreadableImageError, match="60000×60000 pixels are more than 178,956,970"):
        decode(bytes(data))
