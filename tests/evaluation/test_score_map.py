import json
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unibct.data.training_classes import SCORE_MAP_FITTED, Choice, choice_on_rows, training_classes
from unibct.errors import UserError
from unibct.evaluation.score_map import (
    FILE,
    ClassMaps,
    ScaleMap,
    ScoreMap,
    fit_score_map,
    has_score_map,
    load_score_map,
    same_map,
    save_score_map,
)


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


def test_beyond_its_knots_the_map_goes_on_as_it_ended():
    fitted = ScoreMap(np.array([0.0, 1.0]), np.array([10.0, 12.0]), impostors=700)
    assert fitted([-1, 0, 0.5, 1, 3]).tolist() == [9, 10, 11, 12, 16]
    content = json.loads(json.dumps(fitted.as_json()))
    assert content == {"cross": [0, 1], "old": [10, 12], "impostors": 700}
    again = ScoreMap.from_json(content)
    assert np.array_equal(again.cross, fitted.cross)
    assert np.array_equal(again.old, fitted.old)
    assert again.impostors == 700
    knots = np.append(np.arange(17.0), 116.0)
    bent = ScoreMap(knots, np.append(2 * np.arange(17.0), 232 - 1 / 2))
    assert bent([216.0, 316.0]) - 231.5 == pytest.approx(np.array([100, 200]) * (2 - 0.5 / 115))


def test_a_spread_that_is_next_to_nothing_leaves_the_map_finite_and_rising():
    scores = np.linspace(1, 2, 9)
    for cross, old in ((1e-300, 1.0), (1.0, 1e-300)):
        mapped = ScoreMap(np.array([0.0, cross]), np.array([0.0, old]))(scores)
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
    earlier = ScoreMap(fitted.cross, fitted.old)  # a file of an earlier version
    assert "impostors" not in earlier.as_json()
    assert earlier.supports(1e-6)
    assert "not recorded" in earlier.note


@pytest.mark.parametrize(
    ("cross", "old"), [([0, 0], [1, 2]), ([0, 1], [2, 2]), ([0], [1]), ([0, 1], [1, 2, 3])]
)
def test_a_map_that_is_not_strictly_monotone_is_refused(cross, old):
    with pytest.raises(UserError, match="score map"):
        ScoreMap(np.array(cross, float), np.array(old, float))


def test_too_few_scores_and_bad_files_are_refused():
    with pytest.raises(UserError, match="5 impostor scores are too few for a score map"):
        fit_score_map(np.arange(5.0), np.arange(5.0))
    for bad in (
        {"cross": [1, 2]},
        {"cross": [1, 2], "old": [1, float("inf")]},
        {"cross": [1, 2], "old": [1, 2], "impostors": "many"},
        {"cross": [1, 2], "old": [1, 2], "impostors": -3},
    ):
        with pytest.raises(UserError, match=r"no score map|a score map needs"):
            ScoreMap.from_json(bad)


@given(st.integers(0, 10_000), st.sampled_from([np.float32, np.float64]))
def test_the_highest_score_up_to_a_limit_of_score_map(seed, dtype):
    rng = np.random.default_rng(seed)
    fitted = fit_score_map(*rng.normal(0, 0.2, (2, 300)).astype(dtype))
    for limit in (*rng.normal(0, 0.3, 5), fitted.old[0], fitted.old[30], fitted.old[-1], 7.0):
        found = dtype(fitted.highest_up_to(float(limit), dtype))
        assert fitted(found) <= limit < fitted(np.nextafter(found, dtype(np.inf)))
    assert fitted.highest_up_to(-np.inf, dtype) == -np.inf


def test_each_class_has_its_map():
    maps = ClassMaps([ScaleMap(2.0), ScaleMap(0.5)], np.array([1, 0, 1]))
    scores, classes = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1, 2, 1])
    assert maps.mapped(scores, classes).tolist() == [0.05, 0.4, 0.15, 0.8]
    assert maps.limits(0.5, np.float64).tolist() == [1, 0.25, 1]


def test_one_map_for_all_classes():
    maps = same_map(ScaleMap(2.0), 3)
    assert maps.limits(0.5, np.float64).tolist() == [0.25, 0.25, 0.25]


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
