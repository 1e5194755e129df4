from unibct.data.scenarios import SCENARIOS
from unibct.training import FITTED_RECIPES, RECIPE_FOLDER, describe_recipes, shipped_recipes
from unibct.training.recipe import load_recipe


def test_every_file_is_a_recipe_that_loads():
    assert shipped_recipes() == sorted(f.name.partition(".")[0] for f in RECIPE_FOLDER.iterdir())
    assert set(FITTED_RECIPES) <= set(shipped_recipes())
    for name in shipped_recipes():
        assert load_recipe(name).epochs > 0


def test_the_help_names_every_recipe():
    described = describe_recipes().split(", ")
    named = {name.replace("SCENARIO", rule) for name in described for rule in SCENARIOS}
    assert set(shipped_recipes()) <= named
    assert "ms1mv3-SCENARIO" in described
