import numpy as np
import pytest

from unibct.evaluation.bootstrap import ClassDraws
from unibct.evaluation.flips import flip_rates, flips_of, sampled_flip_rates
from unibct.evaluation.search_test import scored_test


def two_tests_of(right_before, right_now, labels):
    """Two tests of the same queries among three classes, right where they should be."""
    labels = np.asarray(labels)
    scores = np.zeros((2, len(labels), 3))
    for test, right in zip(scores, (right_before, right_now), strict=True):
        winner = np.where(right, labels, (labels + 1) % 3)
        test[np.arange(len(labels)), winner] = 1
    return [scored_test(test, labels) for test in scores]


BEFORE = [1, 1, 1, 0, 0, 1, 0, 1]
NOW = [1, 0, 1, 1, 0, 0, 1, 1]
LABELS = [0, 0, 1, 1, 2, 2, 0, 1]


def test_rates_by_hand():
    """Two of eight flip to wrong, two to right; 5/8 were right, 3/8 are wrong."""
    rates = flip_rates(*two_tests_of(np.array(BEFORE) > 0, np.array(NOW) > 0, LABELS))
    assert rates["nfr"] == pytest.approx(2 / 8)
    assert rates["pfr"] == pytest.approx(2 / 8)
    assert rates["relative_nfr"] == pytest.approx((2 / 8) / (5 / 8 * 3 / 8))


def test_the_difference_of_the_rates_is_the_change_of_top_1():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    old, now = two_tests_of(rng.random(200) < 0.6, rng.random(200) < 0.7, labels)
    rates = flip_rates(old, now)
    assert rates["pfr"] - rates["nfr"] == pytest.approx(now.top(1) - old.top(1))
    # Independent errors: the relative rate is near 1.
    assert 0.7 < rates["relative_nfr"] < 1.3


def test_samples_equal_a_naive_resample():
    old, now = two_tests_of(np.array(BEFORE) > 0, np.array(NOW) > 0, LABELS)
    draws = np.array([[1, 1, 1], [2, 0, 1], [0, 3, 0]])
    samples = sampled_flip_rates(old, now, ClassDraws(draws))
    for repeat, counts in enumerate(draws):
        rows = np.repeat(np.arange(8), counts[LABELS])
        was, is_right = np.array(BEFORE)[rows] > 0, np.array(NOW)[rows] > 0
        nfr = np.mean(was & ~is_right)
        expected = was.mean() * (~is_right).mean()
        assert samples["nfr"][repeat] == pytest.approx(nfr)
        assert samples["pfr"][repeat] == pytest.approx(np.mean(~was & is_right))
        assert samples["relative_nfr"][repeat] == pytest.approx(nfr / expected if expected else 0)
    found = flips_of(old, now, ClassDraws(draws))
    assert found.nfr.low <= found.nfr.mean <= found.nfr.high
    assert found.as_json()["relative_nfr"] == found.relative_nfr.mean


def test_nothing_flips_when_nothing_changes():
    old, now = two_tests_of(np.ones(8, bool), np.ones(8, bool), LABELS)
    assert flip_rates(old, now) == {"nfr": 0, "pfr": 0, "relative_nfr": 0}
