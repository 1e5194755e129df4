import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.maps.cases import rotation, unit
from unibct.data.training_classes import UNKNOWN_CLASSES, training_classes
from unibct.errors import UserError
from unibct.maps.space_map import (
    FoundMates,
    KnownPairs,
    SpaceMap,
    checked_direction,
    found_mates,
    load_map,
    save_map,
)
from unibct.maps.vector_map import VectorMap


def small_map(direction="forward", matrix=None):
    layer = (torch.eye(3, 2) if matrix is None else matrix, None)
    known = KnownPairs(("a",), np.ones((1, 3), np.float32), np.ones((1, 2), np.float32))
    linear = VectorMap("linear", (layer,))
    return SpaceMap(linear, direction, "new model", "old model", known, 1.0)


def test_source_and_target_follow_the_direction():
    forward, backward = small_map(), small_map("backward")
    assert (forward.source, forward.target) == ("old model", "new model")
    assert (backward.source, backward.target) == ("new model", "old model")
    forward.require_source("old model", "x")
    with pytest.raises(UserError, match=r"x is in the space .* takes the old model's embeddings"):
        forward.require_source("new model", "x")
    with pytest.raises(UserError, match="takes embeddings by model new model only"):
        backward.require_source("another", "x")


def test_the_fingerprint_follows_everything_that_decides_the_rows():
    base = small_map()
    others = [small_map("backward"), small_map(matrix=2 * torch.eye(3, 2))]
    others += [replace(base, new_model="other"), replace(base, old_model="other")]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert base.fingerprint == small_map().fingerprint


def test_unknown_directions_are_named():
    with pytest.raises(UserError, match="unknown direction 'up'; choose backward or forward"):
        checked_direction("up")


def test_a_map_comes_back_as_it_was(tmp_path):
    saved = small_map()
    save_map(saved, tmp_path / "map")
    assert json.loads((tmp_path / "map" / "map.json").read_text())["found"] == 1.0
    loaded = load_map(tmp_path / "map")
    assert loaded.fingerprint == saved.fingerprint
    assert (loaded.direction, loaded.found_share, loaded.known.ids) == ("forward", 1.0, ("a",))
    assert np.array_equal(loaded.known.new, saved.known.new)
    assert loaded.score_scale is None
    rows = np.random.default_rng(0).normal(size=(4, 2))
    assert np.array_equal(loaded.vector_map(rows), saved.vector_map(rows))
    with pytest.raises(UserError, match="exists already"):
        save_map(saved, tmp_path / "map")


def test_a_map_of_an_earlier_version_does_not_say_what_it_was_fitted_on(tmp_path):
    fitted_on = training_classes(("x", "y"), None)
    save_map(replace(small_map(), fitted_on=fitted_on), tmp_path / "map")
    assert load_map(tmp_path / "map").fitted_on == fitted_on
    path = tmp_path / "map/map.json"
    description = json.loads(path.read_text())
    del description["fitted_on"]
    path.write_text(json.dumps(description))
    assert load_map(tmp_path / "map").fitted_on == UNKNOWN_CLASSES


def test_the_score_scale_is_kept_and_is_no_part_of_the_fingerprint(tmp_path):
    plain = small_map()
    scaled = replace(plain, score_scale=1.25)
    save_map(scaled, tmp_path / "map")
    assert load_map(tmp_path / "map").score_scale == 1.25
    assert scaled.fingerprint == plain.fingerprint


def test_a_changed_direction_or_a_missing_file_is_found(tmp_path):
    save_map(small_map(), tmp_path / "map")
    path = tmp_path / "map/map.json"
    description = json.loads(path.read_text())
    for content, message in [
        (description | {"direction": "backward"}, "does not belong to"),
        (description | {"format": 9}, "has format 9"),
        ({}, "cannot be read as a map"),
    ]:
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=message):
            load_map(tmp_path / "map")
    with pytest.raises(UserError, match="is not a map folder"):
        load_map(tmp_path)


def test_mates_are_found_among_the_best_rows():
    rows = unit(np.random.default_rng(0).normal(size=(200, 8)))
    keys = [f"image {i}" for i in range(200)]
    found = found_mates(rows[:20], keys[:20], rows, keys)
    assert found.share == 1
    assert np.isclose(found.chance, 1 - (1 - 1 / 200) ** 10)  # the best 5 % are ten rows
    turned = found_mates(rows[:20] @ rotation(8), keys[:20], rows, keys)
    assert turned.share < 0.4
    assert found_mates(rows[:2], ["x", "y"], rows, keys) is None


def test_queries_without_a_mate_do_not_count_and_any_mate_will_do():
    rows = np.array([[1.0, 0], [0, 1], [-1, 0]])
    found = found_mates(np.array([[0, 1.0], [1, 0], [1, 0]]), "abx", rows, "bab")
    assert (found.share, found.queries) == (1.0, 2)


def test_ties_do_not_count_as_found():
    rows = np.array([[1.0, 0], [1, 0]])
    assert found_mates(rows[:1], ["a"], rows, ["a", "b"]).share == 0


def test_too_few_are_refused_half_way_to_chance():
    FoundMates(0.51, 0.01, 20).require(1.0, "x")
    with pytest.raises(UserError, match=r"x: only 50% of 20 known queries .* instead of 100%"):
        FoundMates(0.50, 0.01, 20).require(1.0, "x")
    assert FoundMates(0.2, 0.01, 20).is_useful
    assert not FoundMates(0.1, 0.05, 20).is_useful


def test_a_trial_takes_a_thousand_queries_at_most():
    rows = unit(np.random.default_rng(0).normal(size=(1500, 4)))
    trial = found_mates(rows, range(1500), rows, range(1500))
    assert (trial.queries, trial.share) == (1000, 1)
