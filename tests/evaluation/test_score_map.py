import json
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from tests.evaluation.impostor_scores import all_scores
from unibct.data.training_classes import SCORE_MAP_FITTED, Choice, choice_on_rows, training_classes
from unibct.errors import UserError
from unibct.evaluation.score_map import (
    FILE,
    FITTED,
    KINDS,
    ODDS,
    RAW,
    SCALED,
    STANDARDISED,
    ScoreMap,
    fit_log_odds,
    fit_score_map,
    kept_score_maps,
    load_score_map,
    save_score_map,
)
from unibct.evaluation.search_test import ScoredPairs, listed_pairs


def through(before: list[float], after: list[float], **known) -> ScoreMap:
    return ScoreMap(FITTED, knots=(np.array(before, float), np.array(after, float)), **known)


def test_scores_are_multiplied():
    assert ScoreMap(SCALED, 1.25)([-0.4, 0, 0.8]).tolist() == [-0.5, 0, 1]


@given(st.floats(0.5, 2), st.floats(-1, 1), st.sampled_from([np.float32, np.float64]))
def test_the_highest_score_up_to_a_limit(factor, limit, dtype):
    for line in (ScoreMap(SCALED, factor), ScoreMap(STANDARDISED, factor, limit / 3)):
        found = dtype(line.highest_up_to(limit, dtype))
        assert line(found) <= limit < line(np.nextafter(found, dtype(np.inf)))
    assert line.highest_up_to(-np.inf, dtype) == -np.inf, "a threshold that accepts all stays one"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((SCALED, factor), "above zero") for factor in (0, -1, np.nan, np.inf)),
        ((STANDARDISED, -1), "above zero"),
        ((STANDARDISED, 1, np.nan), "its shift is finite"),
        (("bent",), "unknown kind of score map 'bent'"),
        ((FITTED,), "has knots if it is fitted, and only then"),
        ((RAW, 1, 0, (np.arange(2.0), np.arange(2.0))), "has knots if it is fitted, and only then"),
    ],
)
def test_a_map_that_changes_rankings_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        ScoreMap(*arguments)


def test_the_map_carries_quantiles_to_quantiles():
    rng = np.random.default_rng(0)
    old = rng.normal(0.3, 0.2, 50_000)
    cross = 0.5 * rng.normal(0.3, 0.2, 50_000) - 0.1
    fitted = fit_score_map(cross, old)
    for side, knots in zip((cross, old), fitted.knots, strict=True):
        assert knots[[0, 1, -1]] == pytest.approx(np.quantile(side, [0, 0.25, 1 - 10 / 50_000]))
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


def test_beyond_its_knots_the_map_goes_on_as_it_ended():
    fitted = through([0, 1], [10, 12], impostors=700)
    assert fitted([-1, 0, 0.5, 1, 3]).tolist() == [9, 10, 11, 12, 16]
    assert fitted.reach == 12
    content = json.loads(json.dumps(fitted.knots_as_json()))
    assert content == {"cross": [0, 1], "old": [10, 12], "impostors": 700}
    again = ScoreMap.from_json(content)
    assert np.array_equal(again.knots, fitted.knots)
    assert again.impostors == 700
    bent = through([*range(17), 116], [*range(0, 34, 2), 232 - 1 / 2])
    assert bent([216.0, 316.0]) - 231.5 == pytest.approx(np.array([100, 200]) * (2 - 0.5 / 115))


def test_a_spread_that_is_next_to_nothing_leaves_the_map_finite_and_rising():
    scores = np.linspace(1, 2, 9)
    for cross, old in ((1e-300, 1.0), (1.0, 1e-300)):
        mapped = through([0, cross], [0, old])(scores)
        assert np.isfinite(mapped).all()
        assert (np.diff(mapped) > 0).all()


@pytest.mark.parametrize(("impostors", "far"), [(300, 1e-2), (10_000, 1e-4)])
@pytest.mark.parametrize("old_spread", [0.05, 0.1, 0.2])
def test_a_threshold_beyond_the_last_knot_lets_about_as_many_impostors_pass(
    impostors, far, old_spread
):
    """With the slope 1 it was from 0.08 to 3.5 times as many."""
    spread, rng = 0.1, np.random.default_rng(0)
    threshold = old_spread * NormalDist().inv_cdf(1 - far)
    passed = []
    for _ in range(100):
        cross, old = rng.normal(size=(2, impostors)) * [[spread], [old_spread]]
        fitted = fit_score_map(cross, old)
        assert not fitted.supports(far)
        limit = fitted.highest_up_to(threshold, np.float64)
        passed.append(NormalDist(0, spread).cdf(-limit) / far)
    assert 0.8 < np.mean(passed) < 1.8


def test_a_map_supports_rates_at_which_thirty_of_its_impostors_pass():
    rng = np.random.default_rng(0)
    fitted = fit_score_map(rng.normal(size=3000), rng.normal(size=4000))
    assert fitted.impostors == 3000
    assert [fitted.supports(far) for far in (0.1, 1e-2, 9e-3, 1e-4)] == [True, True, False, False]
    assert fitted.note == (
        "the score map was fitted on 3,000 impostor pairs: thresholds for false accept rates below "
        "0.01 are beyond it"
    )
    earlier = replace(fitted, impostors=None)  # a file of an earlier version
    assert "impostors" not in earlier.knots_as_json()
    assert earlier.supports(1e-6)
    assert "not recorded" in earlier.note


@pytest.mark.parametrize(
    ("cross", "old"), [([0, 0], [1, 2]), ([0, 1], [2, 2]), ([0], [1]), ([0, 1], [1, 2, 3])]
)
def test_a_map_that_is_not_strictly_monotone_is_refused(cross, old):
    with pytest.raises(UserError, match="score map"):
        through(cross, old)


def test_too_few_scores_and_bad_files_are_refused():
    with pytest.raises(UserError, match="5 impostor scores are too few for a score map"):
        fit_score_map(np.arange(5.0), np.arange(5.0))
    for bad in (
        {"cross": [1, 2]},
        {"cross": [1, 2], "old": [1, float("inf")]},
        {"cross": [1, 2], "old": [1, 2], "impostors": "many"},
        {"cross": [1, 2], "old": [1, 2], "impostors": -3},
        {"kind": FITTED, "from": [0, 1]},
        {"kind": FITTED, "from": 3},
        {"kind": "bent"},
        {"slope": 1},
        [],
    ):
        with pytest.raises(UserError, match=r"no score map|a score map needs|of score map"):
            ScoreMap.from_json(bad)


@given(st.integers(0, 10_000), st.sampled_from([np.float32, np.float64]))
def test_the_highest_score_up_to_a_limit_of_score_map(seed, dtype):
    rng = np.random.default_rng(seed)
    fitted = fit_score_map(*rng.normal(0, 0.2, (2, 300)).astype(dtype))
    for limit in (*rng.normal(0, 0.3, 5), *fitted.knots[1][[0, 30, -1]], 7.0):
        found = dtype(fitted.highest_up_to(float(limit), dtype))
        assert fitted(found) <= limit < fitted(np.nextafter(found, dtype(np.inf)))
    assert fitted.highest_up_to(-np.inf, dtype) == -np.inf


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_the_line_is_what_a_general_optimiser_finds(seed):
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.uniform(-1, 1, 40))
    mates = rng.poisson(20 * np.clip(scores, 0, 1)).astype(float)
    others = rng.poisson(50 * np.clip(0.5 - scores, 0, 1)).astype(float)
    mates[-1] += 1
    others[0] += 1
    targets = (mates.sum() + 1) / (mates.sum() + 2), 1 / (others.sum() + 2)

    def cross_entropy(line: np.ndarray) -> float:
        share = 1 / (1 + np.exp(-(line[0] * scores + line[1])))
        share = np.clip(share, 1e-300, 1 - 1e-16)
        loss = 0.0
        for counts, target in ((mates, targets[0]), (others, targets[1])):
            loss -= np.sum(counts * (target * np.log(share) + (1 - target) * np.log(1 - share)))
        return loss

    found = fit_log_odds(scores, mates, others)
    options = {"xatol": 1e-9, "fatol": 1e-9, "maxiter": 4000}
    best = minimize(cross_entropy, np.zeros(2), method="Nelder-Mead", options=options)
    assert cross_entropy(np.array(found)) <= best.fun + 1e-6
    assert found == pytest.approx(best.x, rel=1e-2, abs=1e-2)


def test_odds_by_hand():
    # At score 0 one pair of four is a mate, at score 1 three of four; many pairs: targets are 0, 1.
    slope, shift = fit_log_odds(np.array([0.0, 1.0]), np.array([1e9, 3e9]), np.array([3e9, 1e9]))
    assert shift == pytest.approx(-np.log(3), abs=1e-6)
    assert slope == pytest.approx(2 * np.log(3), abs=1e-6)


def test_separated_scores_give_a_finite_line_and_one_kind_of_pairs_gives_none():
    scores = np.array([0.1, 0.9])
    slope, shift = fit_log_odds(scores, np.array([0.0, 50]), np.array([5000.0, 0]))
    assert np.isfinite([slope, shift]).all()
    assert slope > 0
    assert 0.1 * slope + shift == pytest.approx(-np.log(5001), rel=1e-6), "Platt's target"
    assert 0.9 * slope + shift == pytest.approx(np.log(51), rel=1e-6)
    with pytest.raises(UserError, match="the odds of a mate need pairs of the same and of"):
        fit_log_odds(scores, np.zeros(2), np.ones(2))


def pairs(impostor: np.ndarray, genuine: np.ndarray) -> ScoredPairs:
    """Pairs of one class."""
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
    calibrated = fit_score_map(*two_tests(0), RAW)(scores)
    assert calibrated.dtype == np.float64
    assert np.array_equal(calibrated, scores)


def test_standardised_by_hand():
    # Impostors (0, 2) have mean 1 and deviation 1; impostors (4, 10) have mean 7 and deviation 3.
    calibration = fit_score_map(np.array([0.0, 2.0]), np.array([4.0, 10.0]), STANDARDISED)
    assert calibration([0, 1, 2, 3]) == pytest.approx([4, 7, 10, 13])


@given(st.integers(0, 10_000))
def test_standardised_impostors_have_the_mean_and_deviation_of_the_others(seed):
    cross, new_self = two_tests(seed)
    calibrated = fit_score_map(cross, new_self, STANDARDISED)(all_scores(cross.impostor))
    target = all_scores(new_self.impostor)
    assert np.mean(calibrated) == pytest.approx(np.mean(target))
    assert np.std(calibrated) == pytest.approx(np.std(target))


def test_equal_odds_by_an_independent_regression():
    rng = np.random.default_rng(5)
    cross = pairs(rng.normal(0.1, 0.15, 20_000), rng.normal(0.4, 0.15, 2000))
    new_self = pairs(rng.normal(0.0, 0.2, 20_000), rng.normal(0.6, 0.2, 2000))
    calibration = fit_score_map(cross, new_self, ODDS)
    scores = np.linspace(-0.2, 0.8, 20)
    odds: list[np.ndarray] = []
    for side, found in ((cross, scores), (new_self, calibration(scores))):
        of_side = np.concatenate([side.genuine, all_scores(side.impostor)])
        is_mate = np.arange(len(of_side)) < len(side.genuine)
        model = LogisticRegression(C=1e9, tol=1e-10).fit(of_side[:, None], is_mate)
        odds.append(model.decision_function(found[:, None]))
    assert odds[1] == pytest.approx(odds[0], rel=0.01, abs=0.05)


@given(st.integers(0, 10_000), st.sampled_from(list(KINDS)))
def test_every_kind_is_strictly_monotone(seed, kind):
    calibration = fit_score_map(*two_tests(seed), kind)
    scores = np.unique(np.random.default_rng(seed).uniform(-1.5, 1.5, 500).astype(np.float32))
    assert (np.diff(calibration(scores)) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_keeps_every_digit(kind):
    calibration = fit_score_map(*two_tests(3), kind)
    again = ScoreMap.from_json(json.loads(json.dumps(calibration.as_json())))
    scores = np.linspace(-1, 1, 333)
    assert again.kind == kind
    assert np.array_equal(again(scores), calibration(scores))


def test_a_kind_that_cannot_be_fitted_says_why():
    with pytest.raises(UserError, match="unknown kind of score map 'bent'; choose raw, standardi"):
        fit_score_map(*two_tests(0), "bent")
    with pytest.raises(UserError, match="all impostor scores are equal"):
        fit_score_map(np.full(9, 0.5), np.arange(9.0), STANDARDISED)
    worse = pairs(np.linspace(0.5, 0.9, 50), np.linspace(0, 0.4, 50))
    with pytest.raises(UserError, match="mates do not score higher than impostors"):
        fit_score_map(worse, worse, ODDS)


MAP = through([0, 0.5], [0.1, 0.9])


def test_maps_of_several_old_models_are_kept(tmp_path):
    save_score_map(tmp_path, "first", MAP)
    save_score_map(tmp_path, "second", through([0, 0.5], [0.2, 1.8]))
    assert set(kept_score_maps(tmp_path)) == {"first", "second"}
    assert load_score_map(tmp_path, "first")(0.25) == MAP(0.25)
    assert load_score_map(str(tmp_path), "second")(0.5) == 1.8


def test_the_classes_that_a_map_was_fitted_on_are_kept(tmp_path):
    images = "p", "q"
    choice = choice_on_rows(SCORE_MAP_FITTED, "DATA", images, np.arange(2), ("ada", "bob"), None)
    save_score_map(tmp_path, "named", replace(MAP, fitted_on=choice))
    assert load_score_map(tmp_path, "named").fitted_on == choice
    assert "ada" not in (tmp_path / FILE).read_text(), "digests only"
    classes = training_classes(("ada", "bob"), "numbered.rec").as_json()
    digests = frozenset(classes["digests"])
    of_classes = Choice(SCORE_MAP_FITTED, None, frozenset(), digests, "numbered.rec")
    for kept, fitted_on in (({}, None), ({"fitted_on": classes}, of_classes)):
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
