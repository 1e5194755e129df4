import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unibct.errors import UserError
from unibct.evaluation.score_map import ScoreMap, fit_score_map


def test_the_map_carries_quantiles_to_quantiles():
    rng = np.random.default_rng(0)
    old = rng.normal(0.3, 0.2, 50_000)
    cross = 0.5 * rng.normal(0.3, 0.2, 50_000) - 0.1
    fitted = fit_score_map(cross, old)
    for far in (0.1, 1e-2, 1e-3):
        threshold = np.quantile(old, 1 - far)
        assert np.mean(fitted(cross) > threshold) == pytest.approx(far, rel=0.1)


@given(st.integers(0, 10_000))
def test_the_map_is_strictly_monotone_everywhere(seed):
    rng = np.random.default_rng(seed)
    cross, old = rng.normal(size=(2, 200)).round(1)  # many ties
    fitted = fit_score_map(cross, old)
    scores = np.linspace(-9, 9, 2001)
    assert (np.diff(fitted(scores)) > 0).all()


def test_beyond_the_knots_the_slope_is_one():
    fitted = ScoreMap(np.array([0.0, 1.0]), np.array([10.0, 12.0]))
    assert fitted([-1, 0, 0.5, 1, 3]).tolist() == [9, 10, 11, 12, 14]
    again = ScoreMap.from_json(json.loads(json.dumps(fitted.as_json())))
    assert np.array_equal(again.cross, fitted.cross)
    assert np.array_equal(again.old, fitted.old)


@pytest.mark.parametrize(
    ("cross", "old"), [([0, 0], [1, 2]), ([0, 1], [2, 2]), ([0], [1]), ([0, 1], [1, 2, 3])]
)
def test_a_map_that_is_not_strictly_monotone_is_refused(cross, old):
    with pytest.raises(UserError, match="score map"):
        ScoreMap(np.array(cross, float), np.array(old, float))


def test_too_few_scores_and_bad_files_are_refused():
    with pytest.raises(UserError, match="5 impostor scores are too few for a score map"):
        fit_score_map(np.arange(5.0), np.arange(5.0))
    with pytest.raises(UserError, match="no score map"):
        ScoreMap.from_json({"cross": [1, 2]})


@given(st.integers(0, 10_000), st.sampled_from([np.float32, np.float64]))
def test_the_highest_score_up_to_a_limit(seed, dtype):
    rng = np.random.default_rng(seed)
    fitted = fit_score_map(*rng.normal(0, 0.2, (2, 300)).astype(dtype))
    for limit in (*rng.normal(0, 0.3, 5), fitted.old[0], fitted.old[30], fitted.old[-1], 7.0):
        found = dtype(fitted.highest_up_to(float(limit), dtype))
        assert fitted(found) <= limit < fitted(np.nextafter(found, dtype(np.inf)))
    assert fitted.highest_up_to(-np.inf, dtype) == -np.inf
