"""Small training sets, and old models that were trained on them."""

import numpy as np
import pytest

from tests.training.runs import AUGMENTED, RECIPE, SMALL, train
from unibct.data.readers import open_images
from unibct.data.scenarios import split


@pytest.fixture(scope="session")
def split_images(glyph_classes):
    """The old and the new set of extended-data."""
    chosen = split(glyph_classes.labels, "extended-data")
    return glyph_classes.select(chosen.old), glyph_classes.select(chosen.new)


@pytest.fixture(scope="session")
def old_model(split_images, tmp_path_factory):
    return train(split_images[0], RECIPE, tmp_path_factory.mktemp("old") / "m")


@pytest.fixture(scope="session")
def four_classes(split_images):
    """Six images of each of four classes."""
    images = split_images[1]
    rows = [np.flatnonzero(images.labels == c)[:6] for c in range(4)]
    return images.select(np.concatenate(rows))


@pytest.fixture(scope="session")
def four_classes_old(four_classes, tmp_path_factory):
    return train(four_classes, SMALL, tmp_path_factory.mktemp("four") / "m")


@pytest.fixture(scope="session")
def eighty_images():
    """Twenty images of each of four classes."""
    images = open_images("glyphs:train")
    rows = [np.flatnonzero(images.labels == label)[:20] for label in range(4)]
    return images.select(np.concatenate(rows))


@pytest.fixture(scope="session")
def eighty_old(eighty_images, tmp_path_factory):
    """An old model that knows half of the eighty images."""
    folder = tmp_path_factory.mktemp("eighty") / "m"
    return train(eighty_images.select(range(40)), AUGMENTED.updated(epochs=1), folder)
