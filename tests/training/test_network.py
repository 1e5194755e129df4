import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.models.cases import small_model
from tests.training.recipes import SMALL
from unibct.data.training_classes import NO_CLASSES, UNKNOWN_CLASSES
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.forms.table import write_embeddings
from unibct.embeddings.vector_set import open_data
from unibct.embeddings.writing import save_embeddings
from unibct.errors import UserError
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.models.architectures.table import find_architecture
from unibct.models.blended_weights import blend_weights
from unibct.models.folder import load_model, save_model
from unibct.models.input import InputSpec
from unibct.training.network import first_classes, recipe_architecture, recipe_input
from unibct.training.recipe import Recipe, load_recipe
from unibct.training.train import train


def test_a_recipe_without_settings_takes_the_networks_own_input():
    for name in ("resnet18", "resnet-small"):
        recipe = Recipe(architecture=name)
        assert recipe_input(recipe) == recipe_architecture(recipe).input


def test_the_settings_change_the_input():
    settings = ["size=128x64", "fit=crop", "mean=[0.4, 0.5, 0.6]", "deviation=0.25"]
    recipe = load_recipe("paper", settings)
    assert recipe_input(recipe) == InputSpec(128, 64, 3, (0.4, 0.5, 0.6), 0.25, "crop")
    grey = Recipe(architecture="resnet18", channels=1, size=64)
    assert recipe_input(grey) == InputSpec(64, 64, 1)


def test_means_must_fit_the_channels():
    with pytest.raises(UserError, match="mean has 3 numbers for images with 1 channels"):
        recipe_input(Recipe(channels=1, mean=(0.1, 0.2, 0.3)))


def test_first_weights_have_learnt_classes(four_classes, four_classes_old, split_images, tmp_path):
    """Weights of a model folder bring its training classes along, also to descendants."""
    rows = [np.flatnonzero(split_images[1].labels == c)[:6] for c in range(4, 8)]
    others = split_images[1].select(np.concatenate(rows))
    save_model(four_classes_old, tmp_path / "past")
    shutil.copy(tmp_path / "past/model.safetensors", tmp_path / "bare.safetensors")
    recipe = SMALL.updated(epochs=1, warmup_epochs=0)
    options = {"method": "none", "device": "cpu"}

    def seen(model):
        models = {"new": model.training_classes}
        return count_seen_classes(four_classes.class_names, None, models).note

    assert seen(train(others, recipe, tmp_path / "a", **options)).startswith("none of the 4")
    known = recipe.updated(weights=str(tmp_path / "past"))
    begun = train(others, known, tmp_path / "b", **options)
    assert seen(begun).startswith("4 of the 4 test classes were in a model's training set")
    within = recipe.updated(weights=str(tmp_path / "past/model.safetensors"))
    assert seen(train(others, within, tmp_path / "c", **options)).startswith("4 of the 4")
    bare = recipe.updated(weights=str(tmp_path / "bare.safetensors"))
    unknown = train(others, bare, tmp_path / "d", **options)
    assert "what the first weights" in seen(unknown)
    assert "is unknown" in seen(unknown)
    warm = recipe.updated(warm_start=True)
    child = train(others, warm, tmp_path / "e", old=unknown, **options)
    assert "what the first weights" in seen(child)
    assert "what the first weights" in seen(blend_weights(unknown, child, 0.5))
    last = train(others, warm, tmp_path / "f", old=begun, **options)
    assert seen(last).startswith("4 of the 4")
    save_model(last, tmp_path / "again")
    assert seen(load_model(tmp_path / "again")).startswith("4 of the 4")


OWN = "python:tests.models.architectures.own_networks"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"architecture": "resnet-small"}, NO_CLASSES),
        ({"architecture": "resnet-small", "weights": "random"}, NO_CLASSES),
        ({"architecture": f"{OWN}:convolutions"}, NO_CLASSES),
        ({"architecture": f"{OWN}:Described"}, NO_CLASSES),
        ({"architecture": f"{OWN}:whole"}, UNKNOWN_CLASSES),  # a network that is there already
        ({"architecture": f"{OWN}:whole", "weights": "random"}, UNKNOWN_CLASSES),
        ({"architecture": f"{OWN}:shaken"}, UNKNOWN_CLASSES),  # one with noise on all weights
    ],
)
def test_only_weights_that_are_drawn_have_learnt_nothing(settings, expected):
    assert first_classes(Recipe(**settings)) == expected


def test_published_weights_are_of_unknown_classes(monkeypatch):
    entry = replace(find_architecture("resnet-small"), start=print, start_digest="downloaded")
    monkeypatch.setattr("unibct.training.network.recipe_architecture", lambda recipe: entry)
    assert first_classes(Recipe(architecture="timm:x", download=True)) == UNKNOWN_CLASSES


def test_weights_that_do_not_belong_to_their_folder_are_unknown(tmp_path):
    """Somebody has put other weights beside the description."""
    for seed in (0, 1):
        save_model(small_model(seed), tmp_path / str(seed))
    recipe = Recipe(architecture="resnet-small", weights=str(tmp_path / "0"))
    assert first_classes(recipe) == small_model().training_classes
    shutil.copy(tmp_path / "1/model.safetensors", tmp_path / "0")
    assert first_classes(recipe) == UNKNOWN_CLASSES


def test_vectors_have_a_past_too(four_classes, four_classes_old, tmp_path):
    """A projection that was trained on a model's vectors has learnt what this model has learnt."""
    vectors = embed_images(four_classes_old, four_classes)
    save_embeddings(vectors, tmp_path / "folder")
    write_embeddings(vectors, tmp_path / "x.npy", "npy")
    seen = {}
    for name in ("folder", "x.npy"):
        rows = open_data(f"embeddings:{tmp_path / name}")
        test, training = (
            rows.select(np.isin(rows.labels, c).nonzero()[0]) for c in ((0, 1), (2, 3))
        )
        recipe = Recipe(architecture="projection", epochs=1, batch_size=8, warmup_epochs=0)
        head = train(training, recipe, tmp_path / f"head {name}", device="cpu")
        models = {"new": load_model(tmp_path / f"head {name}").training_classes}
        assert head.training_classes == models["new"]
        seen[name] = count_seen_classes(test.class_names, test.class_source, models).note
    assert seen["folder"].startswith("2 of the 2 test classes were")
    described = json.loads((tmp_path / "head folder/model.json").read_text())
    del described["further_classes"]  # of an earlier version
    (tmp_path / "head folder/model.json").write_text(json.dumps(described))
    assert not load_model(tmp_path / "head folder").training_classes.complete
    assert "is unknown: what the first weights, the vectors or the map of the new" in seen["x.npy"]
