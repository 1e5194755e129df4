import json
from dataclasses import replace

import numpy as np
import pytest

from tests.maps.test_space_map import small_map
from unibct.data.training_classes import UNKNOWN_CLASSES, training_classes
from unibct.errors import UserError
from unibct.maps.folder import load_map, save_map


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
    path.write_text(json.dumps(description | {"direction": "backward"}))
    with pytest.raises(UserError, match="does not belong to"):
        load_map(tmp_path / "map")
    path.write_text(json.dumps(description | {"format": 9}))
    with pytest.raises(UserError, match="has format 9"):
        load_map(tmp_path / "map")
    path.write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a map"):
        load_map(tmp_path / "map")
    with pytest.raises(UserError, match="is not a map folder"):
        load_map(tmp_path)
