import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from tests.evaluation.impostor_scores import all_scores
from unibct.errors import UserError
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.search_test import ScoredPairs, listed_pairs
from unibct.gallery.calibration import (
    CALIBRATIONS,
    FITTED,
    ODDS,
    RAW,
    STANDARDISED,
    Calibration,
    fit_calibration,
)


def pairs(impostor: np.ndarray, genuine: np.ndarray | None = None) -> ScoredPairs:
    """Pairs of one class."""
    genuine = np.array([0.9]) if genuine is None else genuine
    zeros = np.zeros(len(genuine), np.int64)
    return listed_pairs(genuine, impostor, zeros, np.zeros(len(impostor), np.int64))


def two_tests(seed: int) -> tuple[ScoredPairs, ScoredPairs]:
    rng = np.random.default_rng(seed)
    return (
        pairs(rng.normal(0.1, 0.1, 300), rng.normal(0.4, 0.1, 60)),
        pairs(rng.normal(0.0, 0.2, 300), rng.normal(0.7, 0.1, 60)),
    )


def test_raw_scores_stay_bit_for_bit():
    scores = np.random.default_rng(0).normal(size=100).astype(np.float32)
    calibrated = fit_calibration(RAW, *two_tests(0))(scores)
    assert calibrated.dtype == np.float64
    assert np.array_equal(calibrated, scores)


def test_standardised_by_hand():
    # Impostors (0, 2) have mean 1 and deviation 1; impostors (4, 10) have mean 7 and deviation 3.
    calibration = fit_calibration(
        STANDARDISED, pairs(np.array([0.0, 2.0])), pairs(np.array([4.0, 10.0]))
    )
    assert calibration([0, 1, 2, 3]) == pytest.approx([4, 7, 10, 13])


@given(st.integers(0, 10_000))
def test_standardised_impostors_have_the_mean_and_deviation_of_the_others(seed):
    cross, new_self = two_tests(seed)
    calibrated = fit_calibration(STANDARDISED, cross, new_self)(all_scores(cross.impostor))
    target = all_scores(new_self.impostor)
    assert np.mean(calibrated) == pytest.approx(np.mean(target))
    assert np.std(calibrated) == pytest.approx(np.std(target))


def test_equal_odds_by_an_independent_regression():
    rng = np.random.default_rng(5)
    cross = pairs(rng.normal(0.1, 0.15, 20_000), rng.normal(0.4, 0.15, 2000))
    new_self = pairs(rng.normal(0.0, 0.2, 20_000), rng.normal(0.6, 0.2, 2000))
    calibration = fit_calibration(ODDS, cross, new_self)
    scores = np.linspace(-0.2, 0.8, 20)
    odds: list[np.ndarray] = []
    for side, found in ((cross, scores), (new_self, calibration(scores))):
        of_side = np.concatenate([side.genuine, all_scores(side.impostor)])
        is_mate = np.arange(len(of_side)) < len(side.genuine)
        model = LogisticRegression(C=1e9, tol=1e-10).fit(of_side[:, None], is_mate)
        odds.append(model.decision_function(found[:, None]))
    assert odds[1] == pytest.approx(odds[0], rel=0.01, abs=0.05)


def test_odds_need_mates_that_score_higher():
    worse = pairs(np.linspace(0.5, 0.9, 50), np.linspace(0, 0.4, 50))
    with pytest.raises(UserError, match="mates do not score higher than impostors"):
        fit_calibration(ODDS, worse, worse)


@given(st.integers(0, 10_000), st.sampled_from(list(CALIBRATIONS)))
def test_every_kind_is_strictly_monotone(seed, kind):
    calibration = fit_calibration(kind, *two_tests(seed))
    scores = np.unique(np.random.default_rng(seed).uniform(-1.5, 1.5, 500).astype(np.float32))
    assert (np.diff(calibration(scores)) > 0).all()


@pytest.mark.parametrize("kind", CALIBRATIONS)
def test_a_file_keeps_every_digit(kind):
    calibration = fit_calibration(kind, *two_tests(3))
    again = Calibration.from_json(json.loads(json.dumps(calibration.as_json())))
    scores = np.linspace(-1, 1, 333)
    assert again.kind == kind
    assert np.array_equal(again(scores), calibration(scores))


def test_what_is_no_calibration_is_refused():
    with pytest.raises(UserError, match="unknown calibration 'bent'; choose raw, standardised, "):
        fit_calibration("bent", *two_tests(0))
    with pytest.raises(UserError, match="unknown calibration 'bent'"):
        Calibration("bent")
    with pytest.raises(UserError, match=r"a calibration must rise: its slope is -1"):
        Calibration(STANDARDISED, slope=-1)
    with pytest.raises(UserError, match="must rise"):
        Calibration(STANDARDISED, shift=float("nan"))
    with pytest.raises(UserError, match="has knots if it is fitted, and only then"):
        Calibration(FITTED)
    with pytest.raises(UserError, match="has knots if it is fitted, and only then"):
        Calibration(RAW, knots=ScoreMap(np.array([0.0, 1.0]), np.array([0.0, 2.0])))
    for value in ({"kind": FITTED, "from": [0, 1]}, {"slope": 1}, [], {"kind": FITTED, "from": 3}):
        with pytest.raises(UserError, match="this is no calibration"):
            Calibration.from_json(value)
    equal = pairs(np.full(9, 0.5))
    with pytest.raises(UserError, match="all impostor scores are equal"):
        fit_calibration(STANDARDISED, equal, pairs(np.arange(9.0)))
