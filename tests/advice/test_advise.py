import copy
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.training.runs import SMALL
from unibct.advice import advise as advise_module
from unibct.advice.advise import (
    AdviceRequest,
    advise,
    backfill_cost,
    mapping_cost,
    method_advice,
    training_cost,
    upgrade_commands,
)
from unibct.advice.measured import Rates
from unibct.data.loader import MEMORY_VARIABLE
from unibct.embeddings.extraction import embed
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.recall import ModelRecall
from unibct.errors import UserError
from unibct.methods import METHODS
from unibct.models.old_space import add_projection
from unibct.training.plan import plan_run


def test_the_old_set_may_be_a_list_of_the_new_data(upgrade):
    def opened(**sets):
        return AdviceRequest(upgrade.model, upgrade.data, **sets).open_old_set()

    assert opened() is None
    assert opened(old_images=upgrade.old_list).ids == upgrade.old_images.ids
    assert len(opened(old_data="glyphs:val")) > 1000


@pytest.mark.parametrize(("text", "rows"), [("12", 12), ("2,000,000", 2_000_000), (None, None)])
def test_a_gallery_may_be_a_number(text, rows):
    assert AdviceRequest(Path("m"), "d", gallery=text).open_gallery() == rows


def test_a_gallery_may_be_images_and_is_not_empty(upgrade):
    gallery = AdviceRequest(Path("m"), "d", gallery=upgrade.data).open_gallery()
    assert not isinstance(gallery, int)
    assert gallery is not None
    assert len(gallery) == 144
    with pytest.raises(UserError, match="--gallery 0: a gallery has at least one row"):
        AdviceRequest(Path("m"), "d", gallery="0").open_gallery()
    with pytest.raises(UserError, match="nowhere is not there"):
        AdviceRequest(Path("m"), "d", gallery="nowhere").open_gallery()


RATES = Rates(
    reading=10, gallery_reading=20, old_forward=50, new_forward=40, training=5, map_rows=1000
)


def test_training_reads_once_embeds_once_and_counts_every_step():
    recipe = SMALL.updated(epochs=3, batch_size=8)
    cost = training_cost(recipe, 100, "unibct-plus", RATES)
    # 96 of 100 images are in whole batches
    expected = {"reading": 10.0, "old embeddings": 2.0, "training steps": 3 * 96 / 5}
    assert dict(cost.parts) == pytest.approx(expected)
    assert cost.seconds == pytest.approx(sum(expected.values()))
    assert "old embeddings" not in training_cost(recipe, 100, "bct", RATES).parts
    flipped = training_cost(recipe.updated(flip=True), 100, "unibct", RATES)
    assert flipped.parts["old embeddings"] == pytest.approx(4.0)


def test_stored_old_embeddings_cost_nothing():
    stored = replace(RATES, old_forward=None)
    recipe = SMALL.updated(epochs=3, batch_size=8)
    assert list(training_cost(recipe, 100, "unibct", stored).parts) == ["reading", "training steps"]
    assert list(mapping_cost(100, stored).parts.values()) == pytest.approx([10.0, 2.5, 0.1])


def test_steps_make_a_training_longer():
    recipe = SMALL.updated(epochs=3, batch_size=8, steps=48)
    cost = training_cost(recipe, 100, "unibct", RATES)
    assert cost.what == "train for 4 epochs on 100 images"
    assert cost.parts["training steps"] == pytest.approx(4 * 96 / 5)


def test_pixels_that_do_not_fit_are_read_in_every_epoch(monkeypatch):
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    cost = training_cost(SMALL.updated(epochs=3, batch_size=8), 100, "unibct", RATES)
    assert cost.parts["reading in every epoch"] == pytest.approx(3 * 96 / 10)


def test_mapping_and_backfill():
    parts = mapping_cost(100, RATES).parts
    assert list(parts.values()) == pytest.approx([20.0, 2.0, 2.5, 0.1])
    cost = backfill_cost(4000, RATES)
    assert cost.as_json() == {
        "what": "embed 4,000 gallery images again",
        "estimated_seconds": pytest.approx(200 + 100),
        "parts": {"reading": pytest.approx(200), "new embeddings": pytest.approx(100)},
    }


def obstacles(old, new, *, has_classifier):
    found = method_advice(old, new, has_classifier=has_classifier)
    return {method.name: method.obstacle for method in found if not method.applies}


def test_only_bct_asks_for_known_classes_and_the_old_classifier():
    assert obstacles("abc", "ab", has_classifier=True) == {}
    unknown = obstacles("abc", "cd", has_classifier=True)
    assert list(unknown) == ["bct"]
    assert "does not know 1 of the 2 new classes, first 'd'" in str(unknown["bct"])
    assert "the old model has none" in obstacles("abc", "ab", has_classifier=False)["bct"]


def test_every_method_is_listed_once_and_the_default_is_marked():
    advice = [method.as_json() for method in method_advice("a", "b", has_classifier=True)]
    assert [entry["name"] for entry in advice] == [name for name in METHODS if name != "none"]
    assert [entry["name"] for entry in advice if entry["default"]] == ["unibct-plus"]


def test_a_method_that_mixes_embeddings_needs_equal_dimensions():
    found = method_advice("a", "a", has_classifier=True, dims=(256, 128))
    assert {m.name for m in found if not m.applies} == {"mixbct"}
    assert all(m.applies for m in method_advice("a", "a", has_classifier=True, dims=(128, 128)))


def test_names_with_spaces_stay_one_word():
    sets = {"images": Path("new list.txt"), "gallery": "the shop"}
    options = {"method": "unibct", "settings": ("mean=[0.1, 0.2, 0.3]",)}
    request = AdviceRequest(Path("my old"), "my photos", **sets, **options)
    commands = upgrade_commands(request, ["--recipe", "my recipes/it's.toml"])
    train = shlex.split(commands["training"][0])
    assert train == [
        "unibct", "train", "my photos", "--images", "new list.txt", "--old", "my old",
        "--method", "unibct", "--recipe", "my recipes/it's.toml",
        "--set", "mean=[0.1, 0.2, 0.3]", "--out", "models/new",
    ]  # fmt: skip
    evaluate = shlex.split(commands["training"][1])
    assert evaluate[3:] == ["--gallery", "my old", "--query", "models/new"]
    assert shlex.split(commands["backfill"][0])[3] == "the shop"
    assert "--new models/free --old 'my old'" in commands["mapping"][1]


def test_the_default_method_and_an_unknown_gallery_are_left_out():
    request = AdviceRequest(Path("old"), "photos", gallery="200")
    commands = upgrade_commands(request, ["--recipe", "glyphs"], larger="resnet-small-wide")
    assert commands["training"][0] == (
        "unibct train photos --old old --recipe glyphs --set architecture=resnet-small-wide "
        "--out models/new"
    )
    assert "GALLERY-IMAGES" in commands["backfill"][0]


def test_a_gallery_whose_name_begins_with_a_digit_is_no_number():
    for gallery, want in (("2021-gallery", "2021-gallery"), ("1_000,000", "GALLERY-IMAGES")):
        request = AdviceRequest(Path("old"), "photos", gallery=gallery)
        assert shlex.split(upgrade_commands(request, [])["backfill"][0])[3] == want


def test_the_free_model_has_no_old_weights_to_start_from():
    request = AdviceRequest(Path("old"), "photos", settings=("warm_start=true", "lr=0.1"))
    commands = upgrade_commands(request, [])
    assert "--set warm_start=true --set lr=0.1" in commands["training"][0]
    assert commands["mapping"][0] == "unibct train photos --set lr=0.1 --out models/free"
    in_file = AdviceRequest(Path("old"), "photos")
    commands = upgrade_commands(in_file, ["--recipe", "my.toml"], warm_start=True)
    free = "unibct train photos --recipe my.toml --no-warm-start --out models/free"
    assert commands["mapping"][0] == free
    assert "--no-warm-start" not in commands["training"][0]


def request_of(upgrade, **changes):
    sets = {"images": upgrade.new_list, "old_images": upgrade.old_list, "gallery": "5000"}
    options = {"settings": (*TINY, "size=32"), "device": "cpu"}
    chosen = {"old": upgrade.model, **sets, **options, **changes}
    return AdviceRequest(data=upgrade.data, **chosen)


@pytest.mark.slow
def test_everything_is_named_measured_and_written_as_plain_values(upgrade):
    advice = advise(request_of(upgrade))
    assert advice.scenario.names == ("open-class",)
    assert (advice.scenario.old_classes, advice.scenario.shared_classes) == (4, 2)
    assert [method.name for method in advice.methods if not method.applies] == ["bct"]
    assert advice.strength is not None
    assert "classes, some of which it was trained on" in advice.strength_on
    assert min(advice.rates.as_json().values()) > 0
    assert set(advice.costs) == set(advice.commands) == {"training", "mapping", "backfill"}
    assert "5,000 gallery images" in advice.costs["backfill"].what
    assert "recipe glyphs (resnet-small on 32×32 grey)" in advice.recipe
    assert f"--images {upgrade.new_list}" in advice.commands["training"][0]
    values = json.loads(json.dumps(advice.as_json()))
    assert values["scenario"]["scenarios"] == ["open-class"]
    assert values["costs"]["training"]["estimated_seconds"] > 0
    assert values["old_model"]["recall_at_1"] == advice.strength.recall_at_1


@pytest.mark.slow
def test_stored_vectors_of_some_images_and_another_dimension(upgrade, tmp_path):
    """The old model is a file, which lacks some images; the new model has more dimensions."""
    lacking = upgrade.new_images.select(range(10, len(upgrade.new_images)))
    write_embeddings(embed(upgrade.old_model, lacking), tmp_path / "old.npy", "npy")
    old = f"embeddings:{tmp_path / 'old.npy'}"
    settings = (*TINY, "dim=160")
    advice = advise(request_of(upgrade, settings=settings, old=old, old_images=None))
    assert advice.scenario.names == ()
    assert advice.strength is not None
    assert advice.rates.old_forward is None
    assert "old embeddings" not in {*advice.costs["training"].parts, *advice.costs["mapping"].parts}
    obstacles = {method.name: method.obstacle for method in advice.methods if not method.applies}
    assert list(obstacles) == ["bct", "mixbct"]
    assert obstacles["mixbct"] == "it mixes new and old embeddings, of 160 and 128 dimensions"
    notes = "\n".join(advice.notes)
    first = upgrade.new_images.ids[0]
    assert f"has no embedding of 10 of {len(upgrade.new_images)} images, first {first!r}" in notes
    assert "embed and export 'models/new?space=old'" in notes
    assert f"--old {old}" in advice.commands["mapping"][1]
    assert json.loads(json.dumps(advice.as_json()))["images_per_second"]["old_forward"] is None


@pytest.mark.slow
def test_a_projection_of_the_old_model_is_mentioned(upgrade):
    """The old model was itself trained with another dimension than the one before it."""
    network = copy.deepcopy(upgrade.old_model.network)
    add_projection(network, upgrade.old_model.dim, 64)
    old = replace(upgrade.old_model, network=network)
    run = plan_run(upgrade.new_images, SMALL, old=old)
    notes = advise_module._old_model_notes(old, upgrade.new_images, 1, run)  # pyright: ignore
    assert len(notes) == 1
    assert "a projection into the 64 dimensions of its own old model" in notes[0]


def test_what_cannot_work_is_refused_before_anything_is_measured(upgrade, monkeypatch):
    monkeypatch.setattr(advise_module, "read_sample", pytest.fail)
    for change, message in (
        ({"method": "bct"}, "does not know 8 of the 10 new classes"),
        ({"method": "x"}, "unknown method 'x'"),
        ({"settings": ("epoch=3",)}, "unknown setting 'epoch'"),
    ):
        with pytest.raises(UserError, match=message):
            advise(request_of(upgrade, **change))


def test_the_notes_say_what_the_numbers_mean():
    class FixedCost:
        def __init__(self, seconds):
            self.seconds = seconds

    def notes(strength, backfill, known=True):
        costs = {"training": FixedCost(100.0), "backfill": FixedCost(backfill)}
        return "\n".join(advise_module._notes(strength, costs, gallery_known=known))  # pyright: ignore

    assert "hardly better than raw pixels" in notes(ModelRecall(0.2, 0.2), 200.0)
    strong = notes(ModelRecall(0.9, 0.2), 200.0)
    assert "raw pixels" not in strong
    assert "takes less time than the training" not in strong
    assert "takes less time than the training" in notes(None, 50.0)
    assert "say how many with --gallery" in notes(None, 50.0, known=False)


def test_the_same_images_ask_for_a_larger_network_unless_one_is_named(upgrade):
    images = upgrade.new_images
    for settings, want_larger, expected, taken in [
        ((), True, "resnet-small-wide", "resnet-small-wide"),
        ((), False, "resnet-small", None),
        (("architecture=resnet-small",), True, "resnet-small", None),
    ]:
        request = request_of(upgrade, settings=settings, recipe="glyphs")
        found = advise_module._recipe(request, images, want_larger=want_larger)
        recipe, line, options, larger = found
        assert (recipe.architecture, larger) == (expected, taken)
        assert ("because the images are the same" in line) == (taken is not None)
        assert options == ["--recipe", "glyphs"]


def test_stored_vectors_of_one_class_are_too_few(upgrade, tmp_path):
    images = upgrade.new_images
    first = images.select([row for row in range(len(images)) if images.labels[row] == 0])
    write_embeddings(embed(upgrade.old_model, first), tmp_path / "one.npy", "npy")
    with pytest.raises(UserError, match="has embeddings of 1 class of"):
        advise(request_of(upgrade, old=f"embeddings:{tmp_path / 'one.npy'}"))
