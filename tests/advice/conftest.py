"""An old model on half of the classes of a small folder of images."""

from types import SimpleNamespace

import pytest

from tests.training.runs import SMALL
from unibct.data.readers import open_images
from unibct.training.train import train


@pytest.fixture(scope="session")
def upgrade(photo_folder, tmp_path_factory):
    """The folder of an old model, the data of both, and lists of their images."""
    root = tmp_path_factory.mktemp("upgrade")
    images = open_images(photo_folder)
    old_images = images.select([i for i in range(len(images)) if images.labels[i] < 4])
    new_images = images.select([i for i in range(len(images)) if images.labels[i] >= 2])
    for name, chosen in (("old", old_images), ("new", new_images)):
        (root / f"{name}.txt").write_text("\n".join(chosen.ids), encoding="utf-8")
    # Where no model is given, raw pixels are compared at 32, so the models take that size, too.
    model = train(old_images, SMALL.updated(size=32), root / "model", device="cpu")
    return SimpleNamespace(
        model=root / "model",
        old_model=model,
        old_images=old_images,
        new_images=new_images,
        data=str(photo_folder),
        old_list=root / "old.txt",
        new_list=root / "new.txt",
    )
