import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.search_test import search_test
from unibct.gallery.calibration import RAW, STANDARDISED, Calibration
from unibct.gallery.mixed_curve import (
    HALF,
    POINTS,
    TwoTables,
    fit_mergings,
    half_test,
    mixed_curve,
    score_tables,
)


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
