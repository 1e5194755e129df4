import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.score_map_file import FILE, load_score_map, save_score_map

MAP = ScoreMap(np.array([0.0, 0.5]), np.array([0.1, 0.9]))


def test_maps_of_several_old_models_are_kept(tmp_path):
    save_score_map(tmp_path, "first", MAP)
    save_score_map(tmp_path, "second", ScoreMap(MAP.cross, 2 * MAP.old))
    assert load_score_map(tmp_path, "first")(0.25) == MAP(0.25)
    assert load_score_map(str(tmp_path), "second")(0.5) == 1.8


def test_a_missing_map_and_a_damaged_file_are_named(tmp_path):
    with pytest.raises(UserError, match="has no score map for the old model x; fit one"):
        load_score_map(tmp_path, "x")
    for text in ("[]", "{", '{"x": {"cross": [1, 0], "old": [0, 1]}}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UserError):
            load_score_map(tmp_path, "x")
