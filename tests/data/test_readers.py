import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import run_command
from tests.data.example_images import png
from tests.data.readers.example_tars import png_members, write_tar
from unibct.data.decoding import Frame
from unibct.data.loader import read_pixels
from unibct.data.readers import (
    LAYOUTS,
    READERS,
    Reader,
    describe_data,
    describe_data_briefly,
    open_images,
    open_unclassed,
)
from unibct.errors import UserError


def test_what_is_not_recognised_can_be_said(tmp_path, photo_folder):
    with pytest.raises(UserError, match=r"nowhere is not there; DATA is one of.*\(recordio:\)"):
        open_images("nowhere")
    path = tmp_path / "labels.of.images"
    path.write_text(f"{min(photo_folder.rglob('*.png'))} one\n")
    with pytest.raises(UserError, match="is not recognised"):
        open_images(path)
    assert len(open_images(f"list:{path}")) == 1
    assert len(open_images(f"folder:{photo_folder}")) == len(open_images(photo_folder))
    assert set(READERS) == {"recordio", "webdataset", "list", "folder", "glyphs"}


def test_every_command_takes_every_kind(photo_folder, tmp_path, capsys):
    assert run_command("convert", photo_folder, "--to", "recordio", "--out", tmp_path / "rec") == 0
    split = ("--scenario", "open-class", "--out")
    assert run_command("split", tmp_path / "rec", *split, tmp_path / "split") == 0
    lists = [(tmp_path / "split" / f"{n}.txt").read_text().split("\n")[:-1] for n in ("old", "new")]
    assert sum(map(len, lists)) == len(open_images(photo_folder))
    chosen = open_images(tmp_path / "rec", tmp_path / "split" / "old.txt")
    assert chosen.ids == tuple(lists[0])
    pixels = read_pixels(chosen, Frame(32, 32, 1))
    assert np.array_equal(pixels.images.labels, chosen.labels)
    capsys.readouterr()
    missing = ("convert", tmp_path / "nothing", "--to", "folder", "--out", tmp_path / "x")
    assert run_command(*missing) == 2
    assert "is not there; DATA is one of" in capsys.readouterr().err


def test_a_list_is_a_path_or_its_text(photo_folder, tmp_path):
    ids = open_images(photo_folder).ids[:3]
    (tmp_path / "some.txt").write_text("\n".join(ids), encoding="utf-8")
    for list_file in (tmp_path / "some.txt", str(tmp_path / "some.txt")):
        assert open_images(photo_folder, list_file).ids == ids


def test_help_and_messages_are_made_from_the_table(monkeypatch):
    zips = Reader("zip_file", ".zip", "a zip file of images")
    monkeypatch.setitem(READERS._entries, "zip", zips)
    assert describe_data().endswith("a zip file of images (zip:)")
    assert describe_data_briefly().endswith("glyphs:train|val|test|final or .zip")
    monkeypatch.delitem(READERS._entries, "zip")
    with pytest.raises(UserError) as caught:
        open_images("nowhere")
    assert str(caught.value) == f"nowhere is not there; DATA is one of: {describe_data()}"


@pytest.mark.parametrize("kind", READERS)
def test_each_reader_has_its_functions(kind):
    module = READERS[kind].load()
    assert not module.recognises("nowhere/at/all")
    with pytest.raises(UserError):
        module.read("nowhere/at/all")


def test_the_table_needs_no_reader():
    code = (
        "import sys\n"
        "from unibct.data.readers import describe_data\n"
        "describe_data()\n"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'PIL', 'tarfile', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_shard_beside_class_folders_must_be_chosen(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(png(1))
    write_tar(tmp_path / "s.tar", png_members(3))
    (tmp_path / "latest").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"has class folders with images, and a \.tar file too"):
        open_images(tmp_path)
    (tmp_path / "latest").unlink()
    assert len(open_images(f"folder:{tmp_path}")) == 1
    assert len(open_images(f"webdataset:{tmp_path}")) == 3


def test_shards_with_a_picture_beside_them_are_the_queries(tmp_path):
    write_tar(tmp_path / "s.tar", png_members(3))
    (tmp_path / "preview.png").write_bytes(png(1))
    assert open_unclassed(tmp_path).ids == open_images(tmp_path).ids


def test_another_package_adds_a_reader(tmp_path, monkeypatch):
    (tmp_path / "pixel_text.py").write_text(
        "from unibct.data.readers import Reader, open_images\n"
        "READER = Reader('pixel_text', '.pixels', 'a text file of pixels')\n"
        "def recognises(name): return name.endswith('.pixels')\n"
        "def read(name): return open_images('glyphs:val')\n"
    )
    (tmp_path / "pixel_text-1.0.dist-info").mkdir()
    for name, text in (
        ("METADATA", "Name: pixel-text\nVersion: 1.0\n"),
        ("entry_points.txt", "[unibct.readers]\npixels = pixel_text:READER\n"),
    ):
        (tmp_path / "pixel_text-1.0.dist-info" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(vars(READERS), "_entries", raising=False)  # looks for packages again
    assert len(open_images("a.pixels")) == len(open_images("pixels:b"))
    assert "a text file of pixels (pixels:)" in describe_data()
    monkeypatch.delitem(vars(READERS), "_entries")


def test_every_layout_has_its_class_and_is_in_the_help(capsys):
    assert run_command("convert", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, layout in LAYOUTS.items():
        assert {"add", "finish"} <= set(vars(layout.load()))
        assert f"{name} ({layout.description})" in text
