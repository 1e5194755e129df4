import numpy as np
import pytest

from tests.notes import Notes
from tests.training.interruption import stopped_before_epoch
from tests.training.recipes import AUGMENTED, SMALL
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.folder import Embeddings
from unibct.embeddings.stored import StoredEmbeddings
from unibct.embeddings.vector_set import vector_set
from unibct.errors import UserError
from unibct.training.default_recipe import recipe_for
from unibct.training.recipe import load_recipe
from unibct.training.train import train
from unibct.training.vector_recipe import fitted_recipe, unused_settings


def vectors(dim, fingerprint, seed=0):
    """Eight classes of five vectors around a centre."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(8), 5)
    rows = rng.normal(size=(8, dim))[labels] + 0.3 * rng.normal(size=(40, dim))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    ids = tuple(f"text {i}" for i in range(40))
    return Embeddings(rows, ids, labels, tuple("abcdefgh"), fingerprint)


def test_a_recipe_for_images_is_made_one_for_vectors(four_classes):
    data = vector_set(vectors(12, "new"), "x")
    fitted = fitted_recipe(AUGMENTED, data)
    assert (fitted.architecture, fitted.size, fitted.flip) == ("projection", (1, 12), False)
    chosen = AUGMENTED.updated(architecture="projection-mlp")
    assert fitted_recipe(chosen, data).architecture == "projection-mlp"
    assert fitted_recipe(AUGMENTED, four_classes) is AUGMENTED
    assert recipe_for(data, ["epochs=4"]) == fitted_recipe(
        load_recipe("glyphs", ["epochs=4"]), data
    )


def test_settings_for_images_are_named(four_classes):
    data, notes = vector_set(vectors(12, "new"), "x"), Notes()
    given = SMALL.updated(architecture="resnet18", flip=True, crop=0.3)
    unused = unused_settings(given, fitted_recipe(given, data))
    assert "not used on finished vectors: architecture = resnet18" in unused
    assert "flip = True, crop = 0.3" in unused
    recipe_for(data, ["flip=true", "lr=0.2"], progress=notes)
    assert notes.texts[0].endswith("not used on finished vectors: flip = True")
    assert len(notes.texts) == 2
    recipe_for(data, ["lr=0.2"], progress=notes)
    assert len(notes.texts) == 3
    assert unused_settings(given, fitted_recipe(given, four_classes)) is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["unibct-plus", "unibct"])
def test_vectors_train_with_the_same_methods_and_resume_to_the_bit(method, four_classes, tmp_path):
    data = vector_set(vectors(12, "new"), "x")
    old = StoredEmbeddings("old", vectors(7, "old", seed=1))
    recipe = SMALL.updated(epochs=30, lr=0.05, warmup_epochs=1, eta=4.0, seed=1)
    options = {"old": old, "method": method, "device": "cpu"}
    model = train(data, recipe, tmp_path / "whole", **options)
    assert (model.architecture, model.dim, model.old_fingerprint) == ("projection", 7, "old")
    mapped = embed_images(model, data).vectors
    centres = np.stack([old.embeddings.vectors[5 * c : 5 * c + 5].mean(axis=0) for c in range(8)])
    assert np.mean((mapped @ centres.T).argmax(axis=1) == data.labels) > 0.9
    with stopped_before_epoch(2):
        train(data, recipe, tmp_path / "part", **options)
    resumed = train(data, recipe, tmp_path / "part", resume=True, **options)
    assert resumed.fingerprint == model.fingerprint
    with pytest.raises(UserError, match="takes finished vectors, not images"):
        embed_images(model, four_classes)
