import pytest

from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.asked import asked_counts
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


def test_a_copy_that_fails_leaves_nothing_and_can_be_repeated(toy_gallery, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("unibct.gallery.copying.write_state", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            toy_gallery.copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert toy_gallery.copy(tmp_path / "copy") == 48
    assert Gallery(tmp_path / "copy").verify() == []


def test_a_copy_knows_which_rows_were_asked_for(upgraded, tmp_path):
    upgraded.search(toy_images(per_class=1, first=50), k=2, remember=True)
    upgraded.copy(tmp_path / "copy")
    counts = asked_counts(tmp_path / "copy")
    assert counts
    assert counts == asked_counts(upgraded.folder.path)
