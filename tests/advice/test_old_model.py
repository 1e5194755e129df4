from dataclasses import replace

import numpy as np
import pytest

from tests.embedders.networks import matrix, write_onnx
from unibct.advice.old_model import old_strength, scenario_of, unknown_classes, usable_images
from unibct.data.decoding import Frame
from unibct.data.training_classes import UNKNOWN_CLASSES
from unibct.embedders.table import open_embedder
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.recall import recall_at_1
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError

FRAME = Frame(32, 32, 1)
BLACK_BOX = "python:tests.embedders.networks:Flattening"


@pytest.fixture(scope="module")
def stored(upgrade):
    """The old model's embeddings of the old images and of the new ones, as a folder keeps them."""
    embeddings = embed_images(upgrade.old_model, upgrade.new_images)
    return StoredEmbeddings("embeddings:old", embeddings)


@pytest.mark.slow
def test_of_stored_embeddings_only_the_images_that_have_one_are_used(upgrade, stored):
    assert usable_images(upgrade.old_model, upgrade.new_images) is upgrade.new_images
    assert usable_images(stored, upgrade.new_images) is upgrade.new_images
    few = usable_images(stored, upgrade.old_images)  # 2 of the 4 old classes are in the new set
    assert set(few.ids) == set(upgrade.old_images.ids) & set(upgrade.new_images.ids)
    with pytest.raises(UserError, match="has no embedding of any image"):
        usable_images(stored, upgrade.old_images.select(np.arange(4)))


def test_class_numbers_of_another_set_are_no_names(upgrade, stored):
    numbered = replace(upgrade.new_images, class_source="another set")
    assert "names its classes differently, or one of the two" in unknown_classes(stored, numbered)
    assert scenario_of(stored, numbered, None).names == ()


def test_embeddings_that_unibct_wrote_know_the_classes_of_their_model(upgrade, stored):
    assert unknown_classes(stored, upgrade.new_images) is None
    found = scenario_of(stored, upgrade.new_images, None)
    assert found == scenario_of(upgrade.old_model, upgrade.new_images, None)
    assert (found.names, found.shared_classes) == (("open-class",), 2)


def test_a_black_box_says_nothing_of_its_classes_but_its_training_set_does(upgrade):
    old = open_embedder(BLACK_BOX)
    found = scenario_of(old, upgrade.new_images, None)
    assert (found.names, found.old_classes, found.shared_classes) == ((), None, None)
    assert "give --old-data" in found.why
    found = scenario_of(old, upgrade.new_images, upgrade.old_images)
    assert (found.names, found.old_classes, found.shared_classes) == (("open-class",), 4, 2)


def test_stored_embeddings_are_as_strong_as_the_model_that_made_them(upgrade, stored):
    strength, on = old_strength(stored, upgrade.new_images, FRAME)
    assert (strength, on) == old_strength(upgrade.old_model, upgrade.new_images, FRAME)
    assert "classes, some of which it was trained on" in on
    images = upgrade.new_images
    expected = recall_at_1(stored.vectors_of(images.ids), images.labels)
    assert strength is not None
    assert strength.recall_at_1 == pytest.approx(expected)


def test_onnx_files_and_callables_are_measured_too(upgrade, tmp_path):
    path = write_onnx(tmp_path / "old.onnx", ["n", 1, 8, 8], matrix(64, 64))
    for reference in (BLACK_BOX, f"onnx:{path}"):
        strength, on = old_strength(open_embedder(reference), upgrade.new_images, FRAME)
        assert strength is not None
        assert 0 < strength.recall_at_1 <= 1
        assert on.endswith("classes that it may have been trained on")


def test_without_two_images_of_a_class_nothing_is_measured(upgrade):
    rows = np.unique(upgrade.new_images.labels, return_index=True)[1]
    strength, on = old_strength(upgrade.old_model, upgrade.new_images.select(rows), FRAME)
    assert (strength, on) == (None, "nothing: no class has two images")


def test_classes_are_not_called_new_to_a_model_of_unknown_past(upgrade):
    """Its first weights may have learnt them."""
    old = replace(upgrade.old_model, further_classes=UNKNOWN_CLASSES)
    assert (
        "classes that it may have been trained on"
        in old_strength(old, upgrade.new_images, FRAME)[1]
    )
