"""Training a model: the recipe, the plan of a run, its state, one step, the loop, checkpoints.

Losses and compatibility methods live in ``losses`` and ``methods``, and the choice of training
images in ``data``. Here are the names of the recipes, readable without torch.
"""

import re
from pathlib import Path

from unibct.data.scenarios import SCENARIOS

# Those that are taken if the user names none, see ``default_recipe``.
SMALL_GREY, SMALL_COLOUR, PHOTOGRAPHS = "glyphs", "small-colour", "photographs"
FITTED_RECIPES = (SMALL_GREY, SMALL_COLOUR, PHOTOGRAPHS)
RECIPE_FOLDER = Path(__file__).parent / "recipes"


def shipped_recipes() -> list[str]:
    """Return the names of the recipes inside the package."""
    return sorted(path.stem for path in RECIPE_FOLDER.glob("*.toml"))


def describe_recipes() -> str:
    """Return the names in a few words, for help texts: those for each scenario as one."""
    scenario = re.compile(rf"-({'|'.join(SCENARIOS)})$")
    return ", ".join(dict.fromkeys(scenario.sub("-SCENARIO", name) for name in shipped_recipes()))
