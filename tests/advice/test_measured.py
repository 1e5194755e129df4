import tempfile
from dataclasses import replace

import numpy as np
import pytest

from tests.embedders.networks import matrix, write_onnx
from tests.training.runs import SMALL
from unibct.advice import measured as rates
from unibct.advice.measured import (
    FoundScenario,
    Rates,
    find_scenario_of,
    forward_rate,
    map_rate,
    old_strength,
    read_sample,
    sample_of,
    scenario_of,
    trial_run,
    unknown_classes,
    usable_images,
)
from unibct.data.decoding import Frame
from unibct.data.readers import open_images
from unibct.data.scenarios import SCENARIOS, split
from unibct.data.training_classes import UNKNOWN_CLASSES
from unibct.embedders import open_embedder
from unibct.embeddings.extraction import embed
from unibct.embeddings.recall import recall_at_1
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError

LABELS = np.repeat(np.arange(20), 10)


def side(rows):
    """The classes and ids of one side of a split."""
    return {f"class {LABELS[row]}" for row in rows}, {f"image {row}" for row in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_split_is_recognised_as_its_scenario(scenario):
    parts = split(LABELS, scenario)
    (old_classes, old_ids), (new_classes, new_ids) = side(parts.old), side(parts.new)
    found = find_scenario_of(old_classes, new_classes, old_ids, new_ids)
    assert found.names == (scenario,)
    assert found.shared_classes == len(old_classes & new_classes)
    without_ids = find_scenario_of(old_classes, new_classes, None, new_ids)
    assert scenario in without_ids.names
    assert ("--old-data" in without_ids.why) == (len(without_ids.names) > 1)


def test_some_new_and_some_lost_classes_are_named():
    found = find_scenario_of(["a", "b", "c"], ["c", "d"], None, ["1"])
    assert found.names == ("open-class",)
    assert found.why == "1 classes are new and 2 old ones are gone"
    assert found.as_json()["shared_classes"] == 1


def test_fewer_classes_with_other_images_are_open_data():
    found = find_scenario_of(["a", "b"], ["a"], ["1", "2"], ["2", "3", "4"])
    assert found.names == ("open-data",)
    assert found.why == "2 other images of classes that are known, and 1 of the old images"
    found = find_scenario_of(["a"], ["a"], ["1", "2"], ["3", "4"])
    assert found.why == "2 other images of classes that are known"


def test_a_part_of_the_old_images_is_no_new_image():
    found = find_scenario_of(["a", "b"], ["a"], ["1", "2", "3"], ["1", "2"])
    assert found.names == ("open-data",)
    assert found.why == "no new image: 2 of the 3 old images"


def test_numbered_classes_may_be_unknown():
    found = FoundScenario((), "only numbers", 3, 4, None)
    assert (found.names, found.shared_classes, found.why) == ((), None, "only numbers")


FRAME = Frame(32, 32, 1)
BLACK_BOX = "python:tests.embedders.networks:Flattening"


@pytest.fixture(scope="module")
def stored(upgrade):
    """The old model's embeddings of the old images and of the new ones, as a folder keeps them."""
    embeddings = embed(upgrade.old_model, upgrade.new_images)
    return StoredEmbeddings("embeddings:old", embeddings)


@pytest.mark.slow
def test_of_stored_embeddings_only_the_images_that_have_one_are_used(upgrade, stored):
    assert usable_images(upgrade.old_model, upgrade.new_images) is upgrade.new_images
    assert usable_images(stored, upgrade.new_images) is upgrade.new_images
    few = usable_images(stored, upgrade.old_images)  # 2 of the 4 old classes are in the new set
    assert set(few.ids) == set(upgrade.old_images.ids) & set(upgrade.new_images.ids)
    with pytest.raises(UserError, match="has no embedding of any image"):
        usable_images(stored, upgrade.old_images.select(np.arange(4)))


def test_class_numbers_of_another_set_are_no_names(upgrade, stored):
    numbered = replace(upgrade.new_images, class_source="another set")
    assert "names its classes differently, or one of the two" in unknown_classes(stored, numbered)
    assert scenario_of(stored, numbered, None).names == ()


def test_embeddings_that_unibct_wrote_know_the_classes_of_their_model(upgrade, stored):
    assert unknown_classes(stored, upgrade.new_images) is None
    found = scenario_of(stored, upgrade.new_images, None)
    assert found == scenario_of(upgrade.old_model, upgrade.new_images, None)
    assert (found.names, found.shared_classes) == (("open-class",), 2)


def test_a_black_box_says_nothing_of_its_classes_but_its_training_set_does(upgrade):
    old = open_embedder(BLACK_BOX)
    found = scenario_of(old, upgrade.new_images, None)
    assert (found.names, found.old_classes, found.shared_classes) == ((), None, None)
    assert "give --old-data" in found.why
    found = scenario_of(old, upgrade.new_images, upgrade.old_images)
    assert (found.names, found.old_classes, found.shared_classes) == (("open-class",), 4, 2)


def test_stored_embeddings_are_as_strong_as_the_model_that_made_them(upgrade, stored):
    strength, on = old_strength(stored, upgrade.new_images, FRAME)
    assert (strength, on) == old_strength(upgrade.old_model, upgrade.new_images, FRAME)
    assert "classes, some of which it was trained on" in on
    images = upgrade.new_images
    expected = recall_at_1(stored.embeddings.vectors_of(images.ids), images.labels)
    assert strength is not None
    assert strength.recall_at_1 == pytest.approx(expected)


def test_onnx_files_and_callables_are_measured_too(upgrade, tmp_path):
    path = write_onnx(tmp_path / "old.onnx", ["n", 1, 8, 8], matrix(64, 64))
    for reference in (BLACK_BOX, f"onnx:{path}"):
        strength, on = old_strength(open_embedder(reference), upgrade.new_images, FRAME)
        assert strength is not None
        assert 0 < strength.recall_at_1 <= 1
        assert on.endswith("classes that it may have been trained on")


def test_without_two_images_of_a_class_nothing_is_measured(upgrade):
    rows = np.unique(upgrade.new_images.labels, return_index=True)[1]
    strength, on = old_strength(upgrade.old_model, upgrade.new_images.select(rows), FRAME)
    assert (strength, on) == (None, "nothing: no class has two images")


def test_classes_are_not_called_new_to_a_model_of_unknown_past(upgrade):
    """Its first weights may have learnt them."""
    old = replace(upgrade.old_model, further_classes=UNKNOWN_CLASSES)
    on = old_strength(old, upgrade.new_images, FRAME)[1]
    assert "classes that it may have been trained on" in on


def test_a_sample_is_small_and_the_same_each_time(glyph_classes):
    sample = sample_of(glyph_classes, 10)
    assert len(sample) == 10
    assert sample.ids == sample_of(glyph_classes, 10).ids
    assert sample_of(glyph_classes, 1000) is glyph_classes


def test_rates_count_every_image_once(upgrade, monkeypatch):
    """With a clock that moves by one second at each look, a rate is the number of images."""
    seconds = iter(range(1000))
    monkeypatch.setattr(rates.time, "perf_counter", lambda: float(next(seconds)))
    sample = read_sample(upgrade.new_images, Frame(32, 32, 1))
    assert sample.rate == len(upgrade.new_images)
    assert forward_rate(upgrade.old_model, sample.pixels) == len(sample.pixels)
    assert map_rate(8, 4) == 2000


def test_unreadable_images_of_a_sample_are_left_out(tmp_path, photo_folder):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bad.png").write_bytes(b"no image")
        for path in sorted(photo_folder.rglob("*.png"))[:2]:
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
    sample = read_sample(open_images(tmp_path), Frame(8, 8, 3))
    assert len(sample.images) == len(sample.pixels) == 4
    assert sample.pixels.shape[1:] == (8, 8, 3)


def test_a_trial_has_the_network_and_method_of_the_real_training(upgrade, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    recipe = SMALL.updated(steps=10_000, lr=1e3, dim=None, batch_size=500)
    images = upgrade.new_images.select(np.arange(40))
    rate, model = trial_run(images, recipe, old=upgrade.old_model, method="unibct", device="cpu")
    assert rate > 0
    assert model.architecture == recipe.architecture
    assert model.training["method"] == "unibct"
    assert model.training["recipe"]["epochs"] == 3
    assert model.old_fingerprint == upgrade.old_model.fingerprint
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_rates_are_plain_numbers():
    assert Rates(1, 2, 3, 4, 5, 6).as_json()["training"] == 5
