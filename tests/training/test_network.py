import shutil

import numpy as np
import pytest

from tests.training.recipes import SMALL
from unibct.errors import UserError
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.models.blended_weights import blend_weights
from unibct.models.folder import load_model, save_model
from unibct.models.input import InputSpec
from unibct.training.network import recipe_architecture, recipe_input
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
    assert "began with weights" in seen(unknown)
    assert "is unknown" in seen(unknown)
    warm = recipe.updated(warm_start=True)
    child = train(others, warm, tmp_path / "e", old=unknown, **options)
    assert "began with weights" in seen(child)
    assert "began with weights" in seen(blend_weights(unknown, child, 0.5))
    last = train(others, warm, tmp_path / "f", old=begun, **options)
    assert seen(last).startswith("4 of the 4")
    save_model(last, tmp_path / "again")
    assert seen(load_model(tmp_path / "again")).startswith("4 of the 4")
