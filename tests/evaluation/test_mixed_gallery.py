import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from tests.gallery.two_models import two_kinds
from unibct.errors import UserError
from unibct.evaluation import mixed_gallery
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.mixed_gallery import (
    CUTS,
    HALF,
    POINTS,
    MixedScores,
    TwoKinds,
    backfill_curve,
    choose_calibration,
    fitted_kinds,
    mixed_quality,
    ranking_quality,
    row_orders,
    shares_of,
)
from unibct.evaluation.score_map import KINDS, ODDS, RAW, STANDARDISED, ScoreMap, fit_score_map
from unibct.evaluation.score_table import NormalizedRows
from unibct.evaluation.search_test import ImageSearch, image_test, search_test
from unibct.evaluation.templates import split_gallery


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
    calibration = ScoreMap(STANDARDISED, slope=1.3, shift=-0.1)
    remade = [rng.random(kinds.rows) < 0.5 for _ in range(2)]
    measured = mixed_quality(kinds, {"any": calibration}, remade)["any"]
    expected = np.zeros(2)
    for mask in remade:
        for query, label in enumerate(kinds.cross.query_labels):
            sides = (kinds.cross, kinds.new_self)
            old, new = (side.gallery @ side.query[query : query + 1][0] for side in sides)
            scores = [new[row] if mask[row] else 1.3 * old[row] - 0.1 for row in range(kinds.rows)]
            expected += naive_quality(np.array(scores), label, kinds.cross.gallery_labels)
    expected /= 2 * kinds.queries
    assert [measured.top_1, measured.mean_average_precision] == pytest.approx(expected)


def test_the_ends_of_a_backfill_are_the_tests_of_one_kind():
    kinds = two_kinds(classes=12, images=8)
    for side, remade in ((kinds.cross, False), (kinds.new_self, True)):
        measured = mixed_quality(kinds, {RAW: ScoreMap()}, [np.full(kinds.rows, remade)])[RAW]
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
    assert set(equal.chosen_on) == set(equal.reported_on) == set(KINDS)
    moved = choose_calibration(shifted(kinds, 1.0))
    assert moved.calibration.kind != RAW
    best = moved.reported_on[moved.calibration.kind]
    assert best.top_1 > moved.reported_on[RAW].top_1
    assert best.mean_average_precision > moved.reported_on[RAW].mean_average_precision + 0.02
    raw = equal.reported_on[RAW]
    assert moved.reported_on[RAW].mean_average_precision < raw.mean_average_precision


@pytest.mark.slow
def test_the_chosen_kind_is_the_best_of_its_half_and_fitted_on_all_classes():
    kinds = shifted(two_kinds(classes=30, images=12), 0.5)
    choice = choose_calibration(kinds, seed=4)
    chosen_on = choice.chosen_on.items()
    worth = {kind: found.top_1 + found.mean_average_precision for kind, found in chosen_on}
    assert choice.calibration.kind == max(worth, key=lambda kind: worth[kind])
    expected = fit_score_map(*kinds.pairs(), choice.calibration.kind)
    scores = np.linspace(-1, 1, 50)
    assert np.array_equal(choice.calibration(scores), expected(scores))
    assert choice.classes == (15, 15)
    assert json.loads(json.dumps(choice.as_json()))["choice"]["kind"] == choice.calibration.kind


def test_the_choice_is_the_same_every_time_and_does_not_see_the_classes_it_reports(monkeypatch):
    kinds = two_kinds(classes=20, images=8)
    first = choose_calibration(kinds, seed=2)
    assert first.as_json() == choose_calibration(kinds, seed=2).as_json()
    assert first.as_json() != choose_calibration(kinds, seed=3).as_json()
    halves: list[TwoKinds] = mixed_gallery._halves(kinds, 2)
    seen = [set(half.cross.query_labels) | set(half.cross.gallery_labels) for half in halves]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(range(20))
    fitted: list[set[int]] = []

    def recorded(cross, new_self, kind):
        fitted.append(set(cross.genuine_classes.tolist()))
        return fit_score_map(cross, new_self, kind)

    monkeypatch.setattr(mixed_gallery, "fit_score_map", recorded)
    choose_calibration(kinds, seed=2)
    assert fitted[: len(KINDS)] == [seen[0]] * len(KINDS)


def test_large_tests_are_drawn_from(monkeypatch):
    monkeypatch.setattr(mixed_gallery, "_MOST_PAIRS", 1)
    kinds = two_kinds(classes=40, images=12)
    halves = mixed_gallery._halves(kinds, 0)
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

    def fit(cross, new_self, kind):
        calls.append(kind)
        if len(calls) > len(KINDS) and kind == best.calibration.kind:
            raise UserError("not on all classes")
        return fit_score_map(cross, new_self, kind)

    monkeypatch.setattr(mixed_gallery, "fit_score_map", fit)
    other = choose_calibration(kinds)
    assert calls[len(KINDS)] == best.calibration.kind
    assert other.calibration.kind == calls[-1] != best.calibration.kind
    assert other.chosen_on == best.chosen_on


@pytest.fixture(scope="module")
def models():
    old, labels = noisy_classes(noise=1.3, images=16)
    new, _ = noisy_classes(noise=0.5, images=16, seed=1)
    return old, new, split_gallery(labels)


@pytest.mark.parametrize("name", ["random", "farthest"])
def test_the_ends_are_the_cross_and_the_self_test(models, name):
    old, new, split = models
    order = row_orders(old, split)[name]
    assert np.array_equal(np.sort(order), np.arange(len(split.gallery)))
    old_self = measured_metrics(search_test(old, old, split), [0.1])
    curve = backfill_curve(old, new, split, order, far=0.1, old_self=old_self)
    assert len(curve.shares) == CUTS == 22
    assert curve.shares[[0, -1]].tolist() == [0, 1]
    for place, gallery in ((0, old), (-1, new)):
        want = measured_metrics(search_test(new, gallery, split), [0.1])
        assert {metric: values[place] for metric, values in curve.values.items()} == want
    # A cut between the ends, by hand.
    mixed = old.copy()
    remade = split.gallery[order[: 7 * len(order) // 21]]
    mixed[remade] = new[remade]
    want = measured_metrics(search_test(new, mixed, split), [0.1])
    assert curve.values["top-1"][7] == want["top-1"]
    assert curve.mean("top-1") == pytest.approx(np.mean(curve.values["top-1"]))
    assert curve.dip("mAP") == min(curve.values["mAP"]) - old_self["mAP"]
    described = curve.as_json()
    assert described["dip"] == described["dips"]["top-1"]
    assert described["mean"] == curve.mean("top-1")


def test_the_farthest_row_is_embedded_again_first(models):
    old, _, split = models
    rows = old[split.gallery] / np.linalg.norm(old[split.gallery], axis=1, keepdims=True)
    order = row_orders(old, split)["farthest"]
    distances = []
    for row, label in zip(rows, split.gallery_labels, strict=True):
        mean = rows[split.gallery_labels == label].mean(axis=0)
        distances.append(1 - row @ mean / np.linalg.norm(mean))
    assert np.allclose(np.array(distances)[order], np.sort(distances)[::-1], atol=1e-6)


def two_searches(seed=0, classes=30):
    old, labels = noisy_classes(classes, 8, noise=1.5, seed=seed)
    new, _ = noisy_classes(classes, 8, noise=0.9, seed=seed + 100)
    split = split_gallery(labels)
    return [search_test(new, rows, split) for rows in (old, new)]


def naive_right(old, new, label, remade, calibration):
    """Whether the best of all rows, searched one by one, is of the query's class; ties hurt."""
    scores = [
        new[row] if row in remade else float(calibration(old[row])) for row in range(len(old))
    ]
    return all(score < scores[label] for row, score in enumerate(scores) if row != label)


@given(st.integers(0, 10_000), st.sampled_from([3, 7, 21, 50]))
def test_a_curve_is_that_of_a_loop_over_shares_queries_and_rows(seed, rows):
    rng = np.random.default_rng(seed)
    labels = rng.integers(rows, size=6)
    old, new = rng.integers(-4, 5, size=(2, 6, rows)) / 4  # many ties
    order = rng.permutation(rows)
    calibration = ScoreMap(STANDARDISED, slope=2.0, shift=0.25)
    scores = MixedScores(old, new, labels)
    right, shares = scores.right(order, calibration), shares_of(order)
    for point in range(POINTS):
        count = point * rows // (POINTS - 1)
        remade = set(order[:count].tolist())
        assert shares[point] == count / rows
        for query, label in enumerate(labels):
            expected = naive_right(old[query], new[query], label, remade, calibration)
            assert right[query, point] == expected
    half = scores.half_test(order, calibration)
    assert np.array_equal(half.ranks == 0, right[:, HALF])


def test_the_ends_of_template_curves_are_the_cross_and_the_new_self_test():
    cross, new_self = two_searches()
    scores = MixedScores.of_tests(cross, new_self)
    order = scores.random_order(3)
    for calibration in fitted_kinds((RAW, STANDARDISED), cross.pairs, new_self.pairs).values():
        right = scores.right(order, calibration)
        assert np.array_equal(right[:, 0], cross.ranks == 0)
        assert np.array_equal(right[:, -1], new_self.ranks == 0)
    assert shares_of(order)[[0, HALF, -1]].tolist() == [0, 0.5, 1]
    assert sorted(order) == list(range(30))
    assert not np.array_equal(order, scores.random_order(4))


def test_standardised_scores_have_impostors_of_equal_mean_and_deviation():
    cross, new_self = two_searches()
    mergings = fitted_kinds((RAW, STANDARDISED), cross.pairs, new_self.pairs)
    assert list(mergings) == [RAW, STANDARDISED]
    old, new = (all_scores(test.impostor) for test in (cross, new_self))
    moved = mergings[STANDARDISED](old)
    assert (moved.mean(), moved.std()) == pytest.approx((new.mean(), new.std()), abs=1e-5)
