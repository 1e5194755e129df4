"""Recipes of runs that take seconds."""

from tests.conftest import TINY
from unibct.training.recipe import load_recipe

RECIPE = load_recipe("glyphs", TINY)
AUGMENTED = load_recipe("glyphs", [*TINY, "flip=true", "crop=0.1", "colour=0.1"])
SMALL = RECIPE.updated(epochs=2, batch_size=8, refresh_epochs=())
