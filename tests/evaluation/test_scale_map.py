import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unibct.errors import UserError
from unibct.evaluation.scale_map import ScaleMap


def test_scores_are_multiplied():
    assert ScaleMap(1.25)([-0.4, 0, 0.8]).tolist() == [-0.5, 0, 1]


@given(st.floats(0.5, 2), st.floats(-1, 1), st.sampled_from([np.float32, np.float64]))
def test_the_highest_score_up_to_a_limit(factor, limit, dtype):
    scale = ScaleMap(factor)
    found = dtype(scale.highest_up_to(limit, dtype))
    assert scale(found) <= limit < scale(np.nextafter(found, dtype(np.inf)))


def test_a_threshold_that_accepts_all_stays_one():
    assert ScaleMap(1.25).highest_up_to(-np.inf, np.float32) == -np.inf


@pytest.mark.parametrize("factor", [0, -1, np.nan, np.inf])
def test_a_factor_that_changes_rankings_is_refused(factor):
    with pytest.raises(UserError, match="above zero"):
        ScaleMap(factor)
