import pytest

from unibct.errors import UserError
from unibct.gallery.folder import GalleryBusyError
from unibct.gallery.gallery import Gallery


def test_a_deleted_gallery_leaves_nothing_and_its_copy_stays(upgraded, tmp_path):
    upgraded.copy(tmp_path / "copy")
    upgraded.index()
    path = upgraded.folder.path
    upgraded.delete()
    assert not path.exists()
    assert Gallery(tmp_path / "copy").verify() == []
    with pytest.raises(UserError, match="is not a gallery"):
        Gallery(path)


def test_a_link_to_a_gallery_goes_with_it(toy_gallery, tmp_path):
    path, link = toy_gallery.folder.path, tmp_path / "link"
    link.symlink_to(path)
    Gallery(link).delete()
    assert not path.exists()
    assert not link.is_symlink()


def test_the_current_folder_can_be_deleted(toy_gallery, monkeypatch):
    path = toy_gallery.folder.path
    monkeypatch.chdir(path)
    Gallery(".").delete()
    assert not path.exists()


def test_a_deletion_that_was_killed_can_be_repeated(toy_gallery, monkeypatch):
    path = toy_gallery.folder.path
    with monkeypatch.context() as patch:
        patch.setattr("unibct.gallery.deletion.shutil.rmtree", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            toy_gallery.delete()
    with pytest.raises(UserError, match="the rows of this gallery are missing"):
        Gallery(path).status()
    Gallery(path).delete()
    assert not path.exists()


def test_a_gallery_that_is_written_to_is_not_deleted(toy_gallery):
    other = Gallery(toy_gallery.folder.path)
    with toy_gallery.folder.writing(), pytest.raises(GalleryBusyError):
        other.delete()
    assert toy_gallery.verify() == []


def test_nothing_is_deleted_if_the_server_is_away(toy_gallery, monkeypatch):
    def away():
        raise UserError("no answer")

    monkeypatch.setattr(toy_gallery.folder.engine, "destroy", away)
    with pytest.raises(UserError, match="no answer"):
        toy_gallery.delete()
    monkeypatch.undo()
    assert toy_gallery.verify() == []
