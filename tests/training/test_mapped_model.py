from dataclasses import replace

import numpy as np
import pytest

from tests.training.runs import SMALL, train
from unibct.data.decoding import UnreadableImageError
from unibct.data.training_classes import training_classes
from unibct.embeddings.extraction import embed
from unibct.embeddings.score_scale import score_scale
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.training.mapped_model import adapt, adapt_embedders


@pytest.fixture(scope="module")
def new(four_classes, tmp_path_factory):
    return train(four_classes, SMALL.updated(seed=9), tmp_path_factory.mktemp("new") / "m")


def unreadable(image_id):
    raise AssertionError(image_id)


def test_a_mapped_model_is_closer_to_the_old_one(new, four_classes, four_classes_old):
    adapted = adapt(new, four_classes_old, four_classes)
    images = np.stack([four_classes.read(i) for i in four_classes.ids])
    old_vectors = four_classes_old.embed(images)
    before, after = ((m.embed(images) * old_vectors).sum(axis=1).mean() for m in (new, adapted))
    assert after > max(before, 0.9)
    assert adapted.network is new.network
    assert adapted.old_fingerprint == four_classes_old.fingerprint
    scale = score_scale(adapted.embed(images), old_vectors, four_classes.labels)
    assert adapted.score_scale == pytest.approx(scale, rel=1e-5)
    measured_on = adapted.training["score_scale_measured_on"]
    assert measured_on == "images that the map was fitted on"
    assert new.score_scale is None
    other = replace(four_classes, class_names=tuple("wxyz"))
    fitted_elsewhere = adapt(new, four_classes_old, other)
    fitted_on = training_classes(other.class_names, None)
    assert fitted_elsewhere.training_classes == new.training_classes | fitted_on
    with pytest.raises(UserError, match="adapted already"):
        adapt(adapted, four_classes_old, four_classes)


def test_an_unknown_kind_is_refused_before_anything_is_embedded(four_classes, four_classes_old):
    images = replace(four_classes, read=unreadable)
    for fit in (adapt, adapt_embedders):
        with pytest.raises(UserError, match="foo"):
            fit(four_classes_old, four_classes_old, images, kind="foo")


def test_images_that_one_of_the_models_cannot_take_may_be_left_out(
    new, four_classes, four_classes_old
):
    reads = []

    def read(image_id):
        reads.append(image_id)
        if len(reads) == 1:
            raise UnreadableImageError("torn")
        return four_classes.read(image_id)

    flaky = replace(four_classes, read=read, skip_bad=True)
    adapted = adapt(new, four_classes_old, flaky)
    without_the_first = four_classes.select(range(1, len(four_classes)))
    assert adapted.fingerprint == adapt(new, four_classes_old, without_the_first).fingerprint


def test_stored_embeddings_that_lack_images(new, four_classes, four_classes_old):
    """They are refused before the model embeds anything, or the images are left out."""
    some = four_classes.select(range(2, len(four_classes)))
    stored = StoredEmbeddings("old.npy", embed(four_classes_old, some))
    unread = replace(four_classes, read=unreadable)
    with pytest.raises(UserError, match=r"old\.npy has no embedding of 2 of"):
        adapt(four_classes_old, stored, unread)
    adapted = adapt(new, stored, replace(four_classes, skip_bad=True))
    assert adapted.fingerprint == adapt(new, stored, some).fingerprint
