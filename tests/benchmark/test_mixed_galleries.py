import numpy as np
import pytest

from tests.gallery.test_mixed_curve import naive_right, two_tests
from unibct.benchmark.mixed_galleries import (
    BELOW_LINE,
    BELOW_START,
    HALF_NFR,
    HALF_TOP_1,
    MEAN,
    MixedGallery,
    curve_values,
    half_tar,
)
from unibct.evaluation.bootstrap import ClassDraws, class_draws
from unibct.gallery.mixed_curve import HALF, POINTS, MixedCurve, fit_mergings, score_tables


@pytest.fixture(scope="module")
def gallery():
    cross, new_self = two_tests(classes=20)
    old_self = two_tests(seed=7, classes=20)[0]  # any other test of the same queries
    draws = class_draws(cross, repeats=50)
    return MixedGallery(old_self, score_tables(cross, new_self), draws, 0.1), cross, new_self


def test_mean_and_dips_of_a_curve_by_hand():
    # Of ten queries 6 are right at the start, 4 at the fifth point, and 8 at the end.
    right = np.zeros((10, POINTS), dtype=bool)
    right[:6] = True
    right[4:6, 5] = False
    right[:8, -1] = True
    curve = MixedCurve(np.arange(POINTS) / (POINTS - 1), right)
    values = curve_values(curve.top_1[None], curve)
    assert values[MEAN] == pytest.approx((19 * 0.6 + 0.4 + 0.8) / 21)
    assert values[BELOW_START] == pytest.approx(-0.2)
    # The line from 0.6 to 0.8 is at 0.65 there, and at 0.79 one point before the end.
    assert values[BELOW_LINE] == pytest.approx(0.4 - 0.65)
    drawn = curve_values(np.stack([curve.top_1, curve.top_1[::-1]]), curve)
    assert drawn[BELOW_START] == pytest.approx([-0.2, 0.6 - 0.8]), "at the same share"


def test_values_are_those_of_a_naive_search(gallery):
    mixed, cross, new_self = gallery
    order = mixed.tables.random_order(1)
    for calibration in fit_mergings(cross, new_self).values():
        found = mixed.measured(order, calibration)
        values = found["values"]
        assert found["top-1"][0] == cross.top(1)
        assert found["top-1"][-1] == new_self.top(1)
        assert values[MEAN] == pytest.approx(np.mean(found["top-1"]))
        remade = set(order[:10].tolist())
        right = np.array([
            naive_right(mixed.tables.old_rows[q], mixed.tables.new_rows[q], label, remade,
                        calibration)
            for q, label in enumerate(mixed.tables.query_classes)
        ])  # fmt: skip
        assert values[HALF_TOP_1] == found["top-1"][HALF] == pytest.approx(right.mean())
        flipped = (mixed.old_self.ranks == 0) & ~right
        assert values[HALF_NFR] == pytest.approx(flipped.mean())
        scores = np.where(
            np.isin(np.arange(20), list(remade)),
            mixed.tables.new_rows,
            calibration(mixed.tables.old_rows),
        )
        is_mate = mixed.tables.query_classes[:, None] == np.arange(20)
        impostors = np.sort(scores[~is_mate])[::-1]
        threshold = impostors[int(0.1 * len(impostors))]
        assert values[half_tar(0.1)] == pytest.approx((scores[is_mate] > threshold).mean())


def test_drawing_every_class_once_gives_the_values_themselves(gallery):
    mixed, cross, new_self = gallery
    once = MixedGallery(
        mixed.old_self, mixed.tables, ClassDraws(np.ones((2, mixed.draws.shape[1]), int)), mixed.far
    )
    order = mixed.tables.random_order(1)
    for calibration in fit_mergings(cross, new_self).values():
        values = once.measured(order, calibration)["values"]
        for name, sampled in once.sampled(order, calibration).items():
            assert sampled == pytest.approx(np.full(2, values[name])), name
