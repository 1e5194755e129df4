from pathlib import Path

import pytest

from tests.gallery.conftest import broken
from tests.gallery.toys import OLD, toy_certificate, toy_images, with_bad, written
from unibct.embedders import open_embedder
from unibct.errors import UserError
from unibct.gallery.creation import gallery_name
from unibct.gallery.gallery import Gallery
from unibct.gallery.gallery_folder import GalleryBusyError
from unibct.gallery.orders import found_counts


def test_names_are_readable_and_never_the_same():
    first, second = (gallery_name(Path("/x/My Faces!")) for _ in range(2))
    assert first != second
    assert first.startswith("unibct_my_faces_")
    assert first.replace("_", "").isalnum()


def test_a_certificate_gives_the_first_model_its_thresholds(tmp_path):
    old = open_embedder(OLD).fingerprint
    certificate = written(toy_certificate(old, "f" * 32), tmp_path)
    gallery = Gallery.create(tmp_path / "G", OLD, certificates=[certificate])
    gallery.add(toy_images())
    hits = gallery.search(toy_images(per_class=1, first=50), k=48, far=0.01)[0].hits
    assert hits
    assert all(hit.similarity >= 0.8 for hit in hits)


def test_a_folder_with_files_is_left_alone(toy_gallery, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "x").touch()
    for write in (lambda folder: Gallery.create(folder, OLD), toy_gallery.copy):
        with pytest.raises(UserError, match="exists already"):
            write(tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["x"]


def test_a_creation_that_fails_names_the_image_and_can_be_repeated(tmp_path):
    images = toy_images(per_class=1)
    with pytest.raises(UserError, match="toys: c3/0 cannot be read"):
        Gallery.create(tmp_path / "G", OLD, known=with_bad(images, "c3/0"))
    assert not (tmp_path / "G").exists()
    assert Gallery.create(tmp_path / "G", OLD, known=images).status().known == 6


def test_a_copy_is_independent_and_knows_which_rows_were_asked_for(upgraded, tmp_path):
    upgraded.search(toy_images(per_class=1, first=50), k=2, remember=True)
    upgraded.copy(tmp_path / "copy")
    counts = found_counts(tmp_path / "copy")
    assert counts
    assert counts == found_counts(upgraded.folder.path)
    copy = Gallery(tmp_path / "copy")
    copy.remove(["c0/0"])
    assert upgraded.status().as_json()["rows"] == 48
    assert copy.folder.state.name != upgraded.folder.state.name
    assert copy.folder.state.steps[:3] == upgraded.folder.state.steps


def test_a_copy_that_fails_leaves_nothing_and_can_be_repeated(toy_gallery, tmp_path):
    with broken("creation.write_state"):
        toy_gallery.copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert toy_gallery.copy(tmp_path / "copy") == 48
    assert Gallery(tmp_path / "copy").verify() == []


def test_a_deleted_gallery_leaves_nothing_and_its_copy_stays(upgraded, tmp_path):
    upgraded.copy(tmp_path / "copy")
    upgraded.index()
    path = upgraded.folder.path
    upgraded.delete()
    assert not path.exists()
    assert Gallery(tmp_path / "copy").verify() == []
    with pytest.raises(UserError, match="is not a gallery"):
        Gallery(path)


@pytest.mark.parametrize("given", [".", "../link"])
def test_the_current_folder_can_be_deleted_and_a_link_goes_with_it(toy_gallery, monkeypatch, given):
    path = toy_gallery.folder.path
    monkeypatch.chdir(path)
    link = path.with_name("link")
    if given != ".":
        link.symlink_to(path)
    Gallery(given).delete()
    assert not path.exists()
    assert not link.is_symlink()


def test_a_deletion_that_was_killed_can_be_repeated(toy_gallery):
    path = toy_gallery.folder.path
    with broken("creation.shutil.rmtree"):
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
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(toy_gallery.folder.engine, "destroy", lambda: 1 / 0)
        toy_gallery.delete()
    assert toy_gallery.verify() == []
