import io
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests.conftest import in_another_process
from unibct import cli
from unibct.data.batches import read_pixels
from unibct.data.readers import READERS, open_images
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
