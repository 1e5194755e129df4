import json
from dataclasses import replace

import numpy as np
import pytest

from unibct.data.choices import SCORE_MAP_FITTED, Choice
from unibct.data.training_classes import choice_on_rows, training_classes
from unibct.errors import UserError
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.score_map_file import FILE, has_score_map, load_score_map, save_score_map

MAP = ScoreMap(np.array([0.0, 0.5]), np.array([0.1, 0.9]))


def test_maps_of_several_old_models_are_kept(tmp_path):
    save_score_map(tmp_path, "first", MAP)
    save_score_map(tmp_path, "second", ScoreMap(MAP.cross, 2 * MAP.old))
    assert has_score_map(tmp_path, "first")
    assert not has_score_map(tmp_path, "third")
    assert load_score_map(tmp_path, "first")(0.25) == MAP(0.25)
    assert load_score_map(str(tmp_path), "second")(0.5) == 1.8


def test_the_classes_that_a_map_was_fitted_on_are_kept(tmp_path):
    images = "p", "q"
    choice = choice_on_rows(SCORE_MAP_FITTED, "DATA", images, np.arange(2), ("ada", "bob"), None)
    save_score_map(tmp_path, "named", replace(MAP, fitted_on=choice))
    assert load_score_map(tmp_path, "named").fitted_on == choice
    assert "ada" not in (tmp_path / FILE).read_text(), "digests only"
    classes = training_classes(("ada", "bob"), "numbered.rec").as_json()
    for kept, fitted_on in (
        ({}, None),
        (
            {"fitted_on": classes},
            Choice(SCORE_MAP_FITTED, None, frozenset(), frozenset(classes["digests"]),
                   "numbered.rec"),
        ),
    ):  # fmt: skip
        earlier = {"earlier": {"cross": [0.0, 0.5], "old": [0.1, 0.9]} | kept}
        (tmp_path / FILE).write_text(json.dumps(earlier))
        loaded = load_score_map(tmp_path, "earlier")
        assert (loaded(0.25), loaded.fitted_on) == (MAP(0.25), fitted_on)


def test_a_missing_map_and_a_damaged_file_are_named(tmp_path):
    with pytest.raises(UserError, match="has no score map for the old model x; fit one"):
        load_score_map(tmp_path, "x")
    for text in (
        "[]", "{", '{"x": [1, 2]}', '{"x": {"cross": [1, 0], "old": [0, 1]}}',
        '{"x": {"cross": [0, 1], "old": [0, 1], "fitted_on": 5}}',
    ):  # fmt: skip
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UserError, match=rf"{FILE}.*remove it and fit the maps again"):
            load_score_map(tmp_path, "x")
