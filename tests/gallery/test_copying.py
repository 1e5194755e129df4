import pytest

from unibct.errors import UserError
from unibct.gallery.gallery import Gallery


def test_a_copy_is_independent(upgraded, tmp_path):
    upgraded.copy(tmp_path / "copy")
    copy = Gallery(tmp_path / "copy")
    copy.remove(["c0/0"])
    assert upgraded.status().as_json()["rows"] == 48
    assert copy.folder.state.name != upgraded.folder.state.name
    assert copy.folder.state.steps[:3] == upgraded.folder.state.steps


def test_a_copy_never_overwrites(toy_gallery, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "x").touch()
    with pytest.raises(UserError, match="exists already"):
        toy_gallery.copy(tmp_path / "copy")


def test_a_copy_that_is_killed_is_no_gallery(toy_gallery, tmp_path, monkeypatch):
    monkeypatch.setattr("unibct.gallery.copying._copy_files", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        toy_gallery.copy(tmp_path / "copy")
    with pytest.raises(UserError, match="is not a gallery"):
        Gallery(tmp_path / "copy")
