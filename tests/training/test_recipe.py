import math

import numpy as np
import pytest

from tests.training.runs import SMALL, train
from unibct.data.scenarios import SCENARIOS
from unibct.errors import UserError
from unibct.training import FITTED_RECIPES, RECIPE_FOLDER, describe_recipes, shipped_recipes
from unibct.training.recipe import Recipe, augmented, find_augment, load_recipe, nearest_recipe

HERE = "python:tests.training.test_recipe"
seen = []


def brighter(pixels, rng):
    seen.append((pixels.shape, int(rng.integers(1000))))
    return pixels // 2 + 128


def too_small(pixels, rng):
    return pixels[:, 1:]


def failing(pixels, rng):
    return pixels // (1 // 0)


def of_one(pixels):
    return pixels


NOT_A_FUNCTION = 3


@pytest.mark.slow
def test_the_function_gets_every_image_and_its_own_numbers(four_classes, tmp_path):
    seen.clear()
    model = train(four_classes, SMALL.updated(augment=f"{HERE}:brighter"), tmp_path / "m")
    plain = train(four_classes, SMALL, tmp_path / "n")
    assert model.fingerprint != plain.fingerprint
    assert len(seen) == 2 * 24  # epochs, images
    assert {shape for shape, _ in seen} == {(1, 16, 16, 1)}
    assert len({number for _, number in seen}) > 40


def test_what_is_no_augmentation_is_refused_in_one_line(four_classes, tmp_path):
    for name, message in (
        ("flips", "write python:MODULE:ATTRIBUTE"),
        (f"{HERE}:NOT_A_FUNCTION", "is not a function"),
        (f"{HERE}:absent", "no attribute 'absent'"),
        (f"{HERE}:of_one", r"is not a function of \(pixels, rng\)"),
    ):
        with pytest.raises(UserError, match=message):
            train(four_classes, SMALL.updated(augment=name), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    pixels, rng = np.zeros((2, 4, 4, 1), np.uint8), np.random.default_rng(0)
    with pytest.raises(UserError, match=r"returned uint8 of shape \(2, 3, 4, 1\), not uint8 of"):
        augmented(f"{HERE}:too_small", pixels, rng)
    with pytest.raises(UserError, match=r"failing failed \(ZeroDivisionError: .* zero\)"):
        augmented(f"{HERE}:failing", pixels, rng)
    assert find_augment(f"{HERE}:brighter") is brighter


def test_the_paper_recipe_is_the_default_of_every_field():
    paper = load_recipe("paper")
    assert paper == Recipe(dim=512, flip=True)  # the flip is usual for faces
    rates = [paper.learning_rate(e) for e in (0, 19.9, 20, 26, 32, 34.9)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001, 0.0001])


def test_cosine_and_warm_up():
    recipe = Recipe(schedule="cosine", epochs=10, lr=0.2, lr_warmup_epochs=2)
    assert recipe.learning_rate(0) == 0
    assert recipe.learning_rate(1) == pytest.approx(0.1 * (1 + math.cos(math.pi / 10)) / 2)
    assert recipe.learning_rate(5) == pytest.approx(0.1)
    assert recipe.learning_rate(10) == pytest.approx(0)


def test_files_and_overrides(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('architecture = "resnet50"\nepochs = 3\n')
    recipe = load_recipe(str(path), ["lr=0.5", "schedule=cosine", "refresh_epochs=[1, 2]"])
    assert (recipe.architecture, recipe.epochs, recipe.lr) == ("resnet50", 3, 0.5)
    assert (recipe.schedule, recipe.refresh_epochs) == ("cosine", (1, 2))
    assert {"glyphs", "paper", "ms1mv3-open-class"} <= set(shipped_recipes())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epoch=3", "unknown setting 'epoch', did you mean 'epochs'"),
        ("dropout=0.1", "dropout was a setting of earlier versions"),
        ("epochs=0", "epochs = 0: .*greater than or equal to 1"),
        ("lr=fast", "lr = 'fast'"),
        ("lam=1.0", "lam = 1.0: .*less than 1"),
        ("tau=0", "tau = 0"),
        ("tau=1e-31", "tau = 1e-31: .*greater than or equal to"),
        ("lr=nan", "lr = nan"),
        ("schedule=linear", "schedule = 'linear'"),
        ("milestones=[5, 3]", "milestones must rise"),
        ("batch_size=1", "batch_size = 1"),
        ("epochs=true", "epochs = True"),
        ('lr="0.1"', "lr = '0.1'"),
        ("seed=-1", "seed = -1"),
        ("seed=18446744073709551616", "seed = 18446744073709551616"),
        ("epochs", "write it as key=value"),
        ("size=12y8", "size = '12y8': write a number, or HEIGHTxWIDTH such as 128x64"),
        ("size=0", "size.0 = 0"),
        ("size=1.5", "size = 1.5"),
        ("channels=2", "channels = 2"),
        ("fit=squeeze", "fit = 'squeeze'"),
        ("mean=[0.1, 127]", "mean.1 = 127: .*less than or equal to 1"),
        ("deviation=0", "deviation.0 = 0: .*greater than 0"),
    ],
)
def test_bad_values_are_refused_by_name(override, message):
    with pytest.raises(UserError, match=message) as error:
        load_recipe("paper", [override])
    assert "\n" not in str(error.value)


def test_missing_or_broken_files_are_named(tmp_path):
    with pytest.raises(UserError, match="neither a readable TOML file nor one of glyphs, ms1mv3-"):
        load_recipe("nothing.toml")
    (tmp_path / "bad.toml").write_text("epochs = = 3")
    with pytest.raises(UserError, match=r"bad.toml"):
        load_recipe(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize(
    ("text", "size"),
    [("64", (64, 64)), ("128x64", (128, 64)), ("128×64", (128, 64)), ("[9, 8]", (9, 8))],
)
def test_a_size_is_height_by_width(text, size):
    recipe = load_recipe("paper", [f"size={text}"])
    assert recipe.size == size
    assert recipe.updated(lr=0.2).size == size


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Recipe().lr = 1.0  # pyright: ignore


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_is_written_as_the_nearest_one_that_ships(name):
    nearest, changes = nearest_recipe(load_recipe(name))
    assert changes == []
    assert load_recipe(nearest) == load_recipe(name)
    assert len(nearest) <= len(name)  # four of the paper's runs have the numbers of `paper`
    several = ["lr=0.003", "schedule=milestones", "mean=[0.1, 0.2, 0.3]"]
    for settings in (["epochs=7"], ["epochs=7", "steps=300"], ["steps=300"], several):
        changed = load_recipe(name, settings)
        nearest, changes = nearest_recipe(changed)
        assert load_recipe(nearest, changes) == changed
        assert settings is several or len(changes) <= len(settings)


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
