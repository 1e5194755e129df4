import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.backfill_curve import (
    CUTS,
    HALF,
    POINTS,
    TwoTables,
    backfill_curve,
    fit_mergings,
    half_test,
    mixed_curve,
    row_orders,
    score_tables,
)
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.mixed_gallery import RAW, STANDARDISED, Calibration
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import split_gallery


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


def two_tests(seed=0, classes=30):
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
    calibration = Calibration(STANDARDISED, slope=2.0, shift=0.25)
    curve = mixed_curve(TwoTables(old, new, labels), order, calibration)
    for point in range(POINTS):
        count = point * rows // (POINTS - 1)
        remade = set(order[:count].tolist())
        assert curve.shares[point] == count / rows
        for query, label in enumerate(labels):
            expected = naive_right(old[query], new[query], label, remade, calibration)
            assert curve.right[query, point] == expected
    assert curve.top_1 == pytest.approx(curve.right.mean(axis=0))
    half = half_test(TwoTables(old, new, labels), order, calibration)
    assert np.array_equal(half.ranks == 0, curve.right[:, HALF])


def test_the_ends_are_the_cross_test_and_the_new_self_test():
    cross, new_self = two_tests()
    tables = score_tables(cross, new_self)
    for calibration in fit_mergings(cross, new_self).values():
        curve = mixed_curve(tables, tables.random_order(3), calibration)
        assert np.array_equal(curve.right[:, 0], cross.ranks == 0)
        assert np.array_equal(curve.right[:, -1], new_self.ranks == 0)
        assert (curve.shares[0], curve.shares[HALF], curve.shares[-1]) == (0, 0.5, 1)
    assert sorted(tables.random_order(3)) == list(range(30))
    assert not np.array_equal(tables.random_order(3), tables.random_order(4))


def test_standardised_scores_have_impostors_of_equal_mean_and_deviation():
    cross, new_self = two_tests()
    mergings = fit_mergings(cross, new_self)
    assert list(mergings) == [RAW, STANDARDISED]
    old, new = (all_scores(test.impostor) for test in (cross, new_self))
    moved = mergings[STANDARDISED](old)
    assert (moved.mean(), moved.std()) == pytest.approx((new.mean(), new.std()), abs=1e-5)
