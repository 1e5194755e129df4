from dataclasses import replace

import numpy as np
import pytest

from unibct.data.image_set import ImageSet
from unibct.data.training_classes import UNKNOWN_CLASSES, training_classes
from unibct.errors import UserError
from unibct.training import set_aside as module
from unibct.training.set_aside import set_aside


def image_set(sizes: list[int]) -> ImageSet:
    """Images without pixels, so many of each class."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    ids = tuple(f"{label}/{row}" for row, label in enumerate(labels))
    names = tuple(f"class {label}" for label in range(len(sizes)))
    return ImageSet("DATA", ids, labels, names, lambda image_id: np.empty(0, np.uint8))


def test_whole_classes_are_set_aside_by_the_seed():
    images = image_set([1] * 20 + [5] * 30)
    sets = set_aside(images, 0.2, seed=3)
    assert (sets.share, sets.classes, sets.images) == (0.2, 10, 50)
    assert sets.validation is not None
    assert len(sets.training.class_names) == 40
    assert len(sets.validation.class_names) == 10
    assert sorted([*sets.training.class_names, *sets.validation.class_names]) == sorted(
        images.class_names
    )
    assert len(sets.training) + len(sets.validation) == len(images)
    assert np.bincount(sets.validation.labels).tolist() == [5] * 10
    again, other = set_aside(images, 0.2, seed=3), set_aside(images, 0.2, seed=4)
    assert again.training.digest == sets.training.digest
    assert other.training.digest != sets.training.digest


def test_by_default_ten_classes_with_two_images_are_needed():
    assert set_aside(image_set([2] * 100), None, 0).share == 0.1
    for few in ([2] * 99, [1] * 91 + [2] * 9):
        sets = set_aside(image_set(few), None, 0)
        assert sets.validation is None
        assert sets.share == 0
        assert len(sets.training) == sum(few)


def test_zero_sets_nothing_aside():
    images = image_set([2] * 200)
    assert set_aside(images, 0, 0).training is images


def test_few_of_many_images_are_measured(monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_IMAGES", 30)
    sets = set_aside(image_set([8] * 40), 0.5, 0)
    assert sets.validation is not None
    assert (sets.classes, sets.images, len(sets.validation)) == (20, 160, 24)


@pytest.mark.parametrize(
    ("sizes", "share", "message"),
    [
        ([3] * 20, 1.0, "validation = 1: write the share"),
        ([3] * 20, -0.1, "validation = -0.1: write the share"),
        ([3] * 20, 0.05, "sets 1 of the 20 classes of DATA aside"),
        ([1] * 20, 0.5, r"sets 0 of the 20 classes of DATA aside \(0 have two images"),
        ([3] * 3, 0.9, "two classes are needed to measure on and two to train on"),
    ],
)
def test_shares_that_cannot_work_are_refused(sizes, share, message):
    with pytest.raises(UserError, match=message):
        set_aside(image_set(sizes), share, 0)


def test_finished_vectors_are_only_set_aside_if_asked():
    vectors = replace(image_set([2] * 200), vector_dim=4)
    assert set_aside(vectors, None, 0).validation is None
    assert set_aside(vectors, 0.1, 0).classes == 20


def learnt(count, source=None):
    """What a model has learnt that was trained on the first classes of ``image_set``."""
    return training_classes([f"class {label}" for label in range(count)], source)


def numbers(images):
    return {int(name.removeprefix("class ")) for name in images.class_names}


def test_a_run_from_old_weights_measures_on_classes_that_the_old_model_has_not_learnt():
    images = image_set([3] * 200)
    sets = set_aside(images, 0.1, 0, learnt(120))
    assert (sets.classes, sets.unlearnt) == (20, True)
    assert numbers(sets.validation) <= set(range(120, 200))
    assert numbers(sets.training) == set(range(200)) - numbers(sets.validation)
    half = set_aside(images, 0.1, 0, learnt(170))
    assert (half.share, half.classes, half.unlearnt) == (0.1, 15, True), "the others are learnt"
    assert set_aside(images, 0.1, 0).unlearnt is None


@pytest.mark.parametrize("known", [learnt(182), UNKNOWN_CLASSES, learnt(10, "another file")])
def test_with_too_few_such_classes_it_draws_from_all(known):
    images = image_set([3] * 200)
    sets, as_always = set_aside(images, 0.1, 0, known), set_aside(images, 0.1, 0)
    assert sets.validation.digest == as_always.validation.digest
    assert sets.training.digest == as_always.training.digest
    assert sets.unlearnt is False
