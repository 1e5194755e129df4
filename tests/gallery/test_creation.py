from dataclasses import replace
from pathlib import Path

import pytest

from tests.gallery.toys import OLD, toy_certificate, toy_images, written
from unibct.data.decoding import UnreadableImageError
from unibct.embedders.table import open_embedder
from unibct.errors import UserError
from unibct.gallery.creation import gallery_name
from unibct.gallery.gallery import Gallery


def test_names_are_readable_and_never_the_same():
    first, second = (gallery_name(Path("/x/My Faces!")) for _ in range(2))
    assert first != second
    assert first.startswith("unibct_my_faces_")
    assert first.replace("_", "").isalnum()


def test_a_certificate_gives_the_first_model_its_thresholds(tmp_path):
    old = open_embedder(OLD).fingerprint
    paper = written(toy_certificate(old, "f" * 32), tmp_path)
    gallery = Gallery.create(tmp_path / "G", OLD, certificates=[paper])
    gallery.add(toy_images())
    hits = gallery.search(toy_images(per_class=1, first=50), k=48, far=0.01)[0].hits
    assert hits
    assert all(hit.similarity >= 0.8 for hit in hits)


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(UserError, match="exists already"):
        Gallery.create(tmp_path, OLD)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_creation_that_fails_names_the_image_and_can_be_repeated(tmp_path):
    images = toy_images(per_class=1)

    def read(image_id):
        if image_id == "c3/0":
            raise UnreadableImageError("not a PNG, JPEG or WebP image")
        return images.read(image_id)

    with pytest.raises(UserError, match="toys: c3/0 cannot be read"):
        Gallery.create(tmp_path / "G", OLD, known=replace(images, read=read))
    assert not (tmp_path / "G").exists()
    assert Gallery.create(tmp_path / "G", OLD, known=images).status().known == 6
