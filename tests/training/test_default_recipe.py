import numpy as np
import pytest

from tests.conftest import TINY
from tests.export.exported_files import OWN
from tests.notes import Notes, show
from tests.training.runs import AUGMENTED, RECIPE, SMALL, stopped_before_epoch, train
from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.embeddings.extraction import embed
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import StoredEmbeddings, vector_set
from unibct.errors import UserError
from unibct.training.default_recipe import choose_recipe, fitted_recipe, recipe_for, unused_settings
from unibct.training.network import recipe_input
from unibct.training.recipe import load_recipe


def image_set(height, width, *, colour):
    def read(image_id):
        pixels = np.zeros((height, width, 3), dtype=np.uint8)
        pixels[:, :, 0] = 90 if colour else 0
        return pixels

    labels = np.arange(12, dtype=np.int64) % 3
    return ImageSet("set", tuple(map(str, range(12))), labels, ("a", "b", "c"), read)


@pytest.mark.parametrize(
    ("height", "width", "colour", "name", "channels", "size"),
    [
        (32, 32, False, "glyphs", 1, 32),
        (64, 300, False, "glyphs", 1, 32),
        (32, 32, True, "small-colour", 3, 32),
        (48, 60, True, "small-colour", 3, 32),
        (64, 64, True, "small-colour", 3, 64),
        (112, 112, True, "photographs", 3, None),
        (3000, 65, True, "photographs", 3, None),
        (600, 800, False, "photographs", 1, None),
    ],
)
def test_size_and_colour_choose(height, width, colour, name, channels, size):
    images = image_set(height, width, colour=colour)
    choice = choose_recipe(images)
    assert choice.name == name
    spec = recipe_input(recipe_for(images))
    assert spec.channels == channels
    assert size is None or (spec.height, spec.width) == (size, size)
    words = choice.options.replace("--recipe ", "").split(" --set ")
    assert load_recipe(words[0], words[1:]) == recipe_for(images)


def test_the_embedded_images_keep_their_recipe():
    for part in ("train", "val", "test", "final"):
        assert recipe_for(open_images(f"glyphs:{part}")) == load_recipe("glyphs")


def test_one_line_says_what_why_and_how_to_change_it():
    notes = show(Notes())
    recipe = recipe_for(image_set(80, 90, colour=False), ["lr=0.01"])
    assert recipe == load_recipe("photographs", ["channels=1", "lr=0.01"])
    [line] = notes.texts
    assert line.startswith("recipe photographs with channels=1 (resnet-small on 48×48 grey): ")
    assert "12 grey images, median 80×90, of 3 classes, median 4 each" in line
    assert line.endswith("; name another recipe, or change settings (KEY=VALUE)")
    assert "\n" not in line


def test_a_setting_of_the_user_goes_before_the_choice_s():
    assert recipe_for(image_set(80, 90, colour=False), ["channels=3"]).channels == 3
    assert recipe_for(open_images("glyphs:val"), TINY) == RECIPE


def test_a_network_for_larger_images_keeps_its_own_input():
    def frame(*overrides):
        return recipe_input(recipe_for(image_set(300, 300, colour=True), overrides)).frame

    own = frame()
    assert frame("architecture=resnet18").shape == (112, 112, 3)
    assert frame("architecture=resnet18", "size=80").shape == (80, 80, 3)
    assert frame("architecture=resnet18", "channels=1").shape == (112, 112, 1)
    assert frame("architecture=resnet-small-wide") == own  # made for 32×32 grey
    assert frame("lr=0.2") == own


def test_a_network_of_others_keeps_what_it_says_about_its_images():
    def frame(name, *overrides):
        settings = (f"architecture={OWN}:{name}", *overrides)
        return recipe_input(recipe_for(image_set(300, 300, colour=False), settings)).frame

    assert frame("Described") == (24, 16, 1, "crop")
    assert frame("Described", "size=80", "fit=letterbox") == (80, 80, 1, "letterbox")
    assert frame("convolutions") == (20, 20, 3, "crop")  # it says nothing about the fit


def test_nothing_readable_is_left_to_the_reader_s_message(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"no image")
    notes = show(Notes())
    assert recipe_for(open_images(tmp_path)) == load_recipe("glyphs")
    assert "median unreadable" in notes.texts[0]


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
    changed = load_recipe("glyphs", ["epochs=4"])
    assert recipe_for(data, ["epochs=4"]) == fitted_recipe(changed, data)


def test_settings_for_images_are_named(four_classes):
    data, notes = vector_set(vectors(12, "new"), "x"), show(Notes())
    given = SMALL.updated(architecture="resnet18", flip=True, crop=0.3)
    unused = unused_settings(given, fitted_recipe(given, data))
    assert "not used on finished vectors: architecture = resnet18" in unused
    assert "flip = True, crop = 0.3" in unused
    recipe_for(data, ["flip=true", "lr=0.2"])
    assert notes.texts[0].endswith("not used on finished vectors: flip = True")
    assert len(notes.texts) == 2
    recipe_for(data, ["lr=0.2"])
    assert len(notes.texts) == 3
    assert unused_settings(given, fitted_recipe(given, four_classes)) is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["unibct-plus", "unibct"])
def test_vectors_train_with_the_same_methods_and_resume_to_the_bit(method, four_classes, tmp_path):
    data = vector_set(vectors(12, "new"), "x")
    old = StoredEmbeddings("old", vectors(7, "old", seed=1))
    recipe = SMALL.updated(epochs=30, lr=0.05, warmup_epochs=1, eta=4.0, seed=1)
    options = {"old": old, "method": method}
    model = train(data, recipe, tmp_path / "whole", **options)
    assert (model.architecture, model.dim, model.old_fingerprint) == ("projection", 7, "old")
    mapped = embed(model, data).vectors
    centres = np.stack([old.embeddings.vectors[5 * c : 5 * c + 5].mean(axis=0) for c in range(8)])
    assert np.mean((mapped @ centres.T).argmax(axis=1) == data.labels) > 0.9
    with stopped_before_epoch(2):
        train(data, recipe, tmp_path / "part", **options)
    resumed = train(data, recipe, tmp_path / "part", resume=True, **options)
    assert resumed.fingerprint == model.fingerprint
    with pytest.raises(UserError, match="takes finished vectors, not images"):
        embed(model, four_classes)
