import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from tests.gallery.two_models import two_kinds
from unibct.errors import UserError
from unibct.evaluation import mixed_gallery as calibration_choice
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.mixed_gallery import (
    CALIBRATIONS,
    FITTED,
    ODDS,
    RAW,
    STANDARDISED,
    Calibration,
    TwoKinds,
    choose_calibration,
    fit_calibration,
    fit_log_odds,
    mixed_quality,
    ranking_quality,
)
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.score_table import NormalizedRows
from unibct.evaluation.search_test import ImageSearch, ScoredPairs, image_test, listed_pairs


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
    best = minimize(
        cross_entropy,
        np.zeros(2),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 4000},
    )
    assert cross_entropy(np.array(found)) <= best.fun + 1e-6
    assert found == pytest.approx(best.x, rel=1e-2, abs=1e-2)


def test_odds_by_hand():
    # At score 0 one pair of four is a mate, at score 1 three of four; many pairs: targets are 0, 1.
    slope, shift = fit_log_odds(np.array([0.0, 1.0]), np.array([1e9, 3e9]), np.array([3e9, 1e9]))
    assert shift == pytest.approx(-np.log(3), abs=1e-6)
    assert slope == pytest.approx(2 * np.log(3), abs=1e-6)


def test_separated_scores_give_a_finite_line():
    slope, shift = fit_log_odds(np.array([0.1, 0.9]), np.array([0.0, 50]), np.array([5000.0, 0]))
    assert np.isfinite([slope, shift]).all()
    assert slope > 0
    assert 0.1 * slope + shift == pytest.approx(-np.log(5001), rel=1e-6), "Platt's target"
    assert 0.9 * slope + shift == pytest.approx(np.log(51), rel=1e-6)


def test_one_kind_of_pairs_is_not_enough():
    with pytest.raises(UserError, match="the odds of a mate need pairs of the same and of"):
        fit_log_odds(np.array([0.1, 0.9]), np.zeros(2), np.ones(2))


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


def naive_quality(scores: np.ndarray, label: int, row_labels: np.ndarray) -> tuple[float, float]:
    """Whether the first row is a mate, and the average precision, of one query; ties hurt."""
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], row_labels[row] == label))
    hits = [row_labels[row] == label for row in order]
    precisions = [sum(hits[: n + 1]) / (n + 1) for n, hit in enumerate(hits) if hit]
    return float(hits[0]), sum(precisions) / len(precisions)


@given(st.integers(0, 10_000))
def test_quality_is_that_of_a_naive_ranking(seed):
    rng = np.random.default_rng(seed)
    row_labels = np.concatenate([np.arange(4), rng.integers(4, size=8)])
    labels = rng.integers(4, size=6)
    scores = rng.integers(5, size=(6, 12)).astype(float)  # many ties
    first, precisions = ranking_quality(scores.copy(), labels, row_labels)
    for query in range(6):
        expected = naive_quality(scores[query], labels[query], row_labels)
        assert (first[query], precisions[query]) == pytest.approx(expected)


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_a_mixed_gallery_is_searched_as_a_loop_would(seed):
    kinds = two_kinds(classes=6, images=8, seed=seed)
    rng = np.random.default_rng(seed)
    calibration = Calibration(STANDARDISED, slope=1.3, shift=-0.1)
    remade = [rng.random(kinds.rows) < 0.5 for _ in range(2)]
    measured = mixed_quality(kinds, {"any": calibration}, remade)["any"]
    expected = np.zeros(2)
    for mask in remade:
        for query, label in enumerate(kinds.cross.query_labels):
            old, new = (
                side.gallery @ side.query[query : query + 1][0]
                for side in (kinds.cross, kinds.new_self)
            )
            scores = [new[row] if mask[row] else 1.3 * old[row] - 0.1 for row in range(kinds.rows)]
            expected += naive_quality(np.array(scores), label, kinds.cross.gallery_labels)
    expected /= 2 * kinds.queries
    assert [measured.top_1, measured.mean_average_precision] == pytest.approx(expected)


def test_the_ends_of_a_backfill_are_the_tests_of_one_kind():
    kinds = two_kinds(classes=12, images=8)
    for side, remade in ((kinds.cross, False), (kinds.new_self, True)):
        measured = mixed_quality(kinds, {RAW: Calibration()}, [np.full(kinds.rows, remade)])[RAW]
        metrics = measured_metrics(image_test(side), [0.1])
        assert measured.top_1 == pytest.approx(metrics["top-1"])
        assert measured.mean_average_precision == pytest.approx(metrics["mAP"])


def test_parts_by_class():
    kinds = two_kinds(classes=6, images=8)
    part = kinds.of_classes(np.arange(6) < 2)
    assert set(part.cross.query_labels) == set(part.new_self.gallery_labels) == {0, 1}
    assert part.queries == kinds.queries // 3
    assert part.rows == kinds.rows // 3
    assert np.array_equal(part.cross.gallery, kinds.cross.gallery[: part.rows])
    assert noisy_classes(6, 8)[1][0] == 0, "classes come in order"


def shifted(kinds: TwoKinds, by: float) -> TwoKinds:
    """The same gallery, but every new→new score is higher by a constant on some scale.

    Another dimension, in which all new vectors agree, adds a constant to their cosines.
    """

    def raised(vectors: np.ndarray) -> np.ndarray:
        return np.column_stack([vectors, np.full(len(vectors), by, np.float32)])

    side = kinds.new_self
    query = NormalizedRows(raised(side.query[: len(side.query)]), np.arange(len(side.query)))
    gallery = raised(side.gallery) / np.sqrt(1 + by**2)
    higher = ImageSearch(query, side.query_labels, gallery.astype(np.float32), side.gallery_labels)
    return TwoKinds(kinds.cross, higher)


@pytest.mark.slow
def test_equal_scales_stay_raw_and_shifted_ones_do_not():
    kinds = two_kinds(classes=30, images=12)
    equal = choose_calibration(kinds)
    assert set(equal.chosen_on) == set(equal.reported_on) == set(CALIBRATIONS)
    moved = choose_calibration(shifted(kinds, 1.0))
    assert moved.calibration.kind != RAW
    best = moved.reported_on[moved.calibration.kind]
    assert best.top_1 > moved.reported_on[RAW].top_1
    assert best.mean_average_precision > moved.reported_on[RAW].mean_average_precision + 0.02
    assert moved.reported_on[RAW].mean_average_precision < (
        equal.reported_on[RAW].mean_average_precision
    )


@pytest.mark.slow
def test_the_chosen_kind_is_the_best_of_its_half_and_fitted_on_all_classes():
    kinds = shifted(two_kinds(classes=30, images=12), 0.5)
    choice = choose_calibration(kinds, seed=4)
    worth = {
        kind: quality.top_1 + quality.mean_average_precision
        for kind, quality in choice.chosen_on.items()
    }
    assert choice.calibration.kind == max(worth, key=lambda kind: worth[kind])
    pairs = [image_test(side).pairs for side in (kinds.cross, kinds.new_self)]
    expected = fit_calibration(choice.calibration.kind, *pairs)
    scores = np.linspace(-1, 1, 50)
    assert np.array_equal(choice.calibration(scores), expected(scores))
    assert choice.classes == (15, 15)
    assert json.loads(json.dumps(choice.as_json()))["choice"]["kind"] == choice.calibration.kind


def test_the_choice_is_the_same_every_time_and_does_not_see_the_classes_it_reports(monkeypatch):
    kinds = two_kinds(classes=20, images=8)
    first = choose_calibration(kinds, seed=2)
    assert first.as_json() == choose_calibration(kinds, seed=2).as_json()
    assert first.as_json() != choose_calibration(kinds, seed=3).as_json()
    halves: list[TwoKinds] = calibration_choice._halves(kinds, 2)
    seen = [set(half.cross.query_labels) | set(half.cross.gallery_labels) for half in halves]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(range(20))
    fitted: list[set[int]] = []

    def recorded(kind, cross, new_self):
        fitted.append(set(cross.genuine_classes.tolist()))
        return fit_calibration(kind, cross, new_self)

    monkeypatch.setattr(calibration_choice, "fit_calibration", recorded)
    choose_calibration(kinds, seed=2)
    assert fitted[: len(CALIBRATIONS)] == [seen[0]] * len(CALIBRATIONS)


def test_large_tests_are_drawn_from(monkeypatch):
    monkeypatch.setattr(calibration_choice, "_MOST_PAIRS", 1)
    kinds = two_kinds(classes=40, images=12)
    halves = calibration_choice._halves(kinds, 0)
    assert [half.queries for half in halves] == [100, 100]
    assert [half.rows for half in halves] == [60, 60]


def test_a_kind_that_cannot_be_fitted_is_left_out():
    kinds = two_kinds(classes=4, images=4)
    choice = choose_calibration(kinds)  # 6 × 1 impostor scores: too few for a fitted one
    assert set(choice.chosen_on) == {RAW, STANDARDISED, ODDS}
    with pytest.raises(UserError, match="3 classes with queries are too few to choose"):
        choose_calibration(two_kinds(classes=3, images=8))


def test_the_next_best_kind_is_taken_if_the_best_cannot_be_fitted_on_all_classes(monkeypatch):
    kinds = shifted(two_kinds(classes=20, images=12), 1.0)
    best = choose_calibration(kinds)
    calls: list[str] = []

    def fit(kind, *pairs):
        calls.append(kind)
        if len(calls) > len(CALIBRATIONS) and kind == best.calibration.kind:
            raise UserError("not on all classes")
        return fit_calibration(kind, *pairs)

    monkeypatch.setattr(calibration_choice, "fit_calibration", fit)
    other = choose_calibration(kinds)
    assert calls[len(CALIBRATIONS)] == best.calibration.kind
    assert other.calibration.kind == calls[-1] != best.calibration.kind
    assert other.chosen_on == best.chosen_on
