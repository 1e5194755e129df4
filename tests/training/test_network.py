import pytest

from unibct.errors import UserError
from unibct.models.input import InputSpec
from unibct.training.network import recipe_architecture, recipe_input
from unibct.training.recipe import Recipe, load_recipe


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
