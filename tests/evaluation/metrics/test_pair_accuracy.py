import numpy as np
import pytest
from sklearn.model_selection import KFold

from unibct.errors import UserError
from unibct.evaluation.metrics.pair_accuracy import fold_accuracy

THRESHOLDS = np.arange(0, 4, 0.01)


def test_a_fold_takes_the_threshold_that_is_best_on_the_others():
    """Two folds whose best thresholds differ: each is judged by the other's."""
    scores = np.array([0.9, 0.7, 0.5, 0.2, 0.1, -0.2])
    same = np.array([True, False, False, True, False, False])
    found = fold_accuracy(scores, same, folds=2)
    # The second fold's threshold accepts all of the first; the first one's refuses all of the
    # second.
    assert found.folds.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert found.mean == pytest.approx(0.5)
    assert found.correct.tolist() == [True, False, False, False, True, True]


def test_drawn_folds_equal_a_naive_loop():
    """Each drawn fold is judged at the threshold that is best on the drawn folds besides it."""
    rng = np.random.default_rng(0)
    same = rng.random(43) < 0.5
    scores = np.clip(rng.normal(0.2 + 0.2 * same, 0.3), -1, 1)
    accuracy = fold_accuracy(scores, same, folds=4)
    draws = np.array([[1, 1, 1, 1], [2, 0, 1, 1], [0, 3, 0, 1], [1, 0, 2, 1]])
    parts = np.array_split(np.arange(43), 4)
    for found, times in zip(accuracy.sampled(draws), draws, strict=True):
        accuracies = []
        for fold in np.repeat(np.arange(4), times):
            others = [i for k in range(4) if k != fold for i in [*parts[k]] * times[k]]
            right = [np.sum((2 - 2 * scores[others] < t) == same[others]) for t in THRESHOLDS]
            threshold = THRESHOLDS[int(np.argmax(right))]
            rows = parts[fold]
            accuracies.append(np.mean((2 - 2 * scores[rows] < threshold) == same[rows]))
        assert found == pytest.approx(np.mean(accuracies))
    assert accuracy.sampled(draws[:1])[0] == pytest.approx(accuracy.mean)


def test_too_few_pairs_are_refused():
    with pytest.raises(UserError, match="3 pairs cannot be divided into 10 folds"):
        fold_accuracy(np.zeros(3), np.ones(3, dtype=bool))


def test_ten_fold_accuracy_against_the_field_s_loop():
    rng = np.random.default_rng(0)
    same = rng.random(603) < 0.5
    scores = np.clip(rng.normal(0.2 + 0.3 * same, 0.2), -1, 1)
    distance = 2 - 2 * scores
    expected = []
    for train, test in KFold(10, shuffle=False).split(scores):
        accuracies = [np.mean((distance[train] < t) == same[train]) for t in np.arange(0, 4, 0.01)]
        threshold = np.arange(0, 4, 0.01)[int(np.argmax(accuracies))]
        expected.append(np.mean((distance[test] < threshold) == same[test]))
    found = fold_accuracy(scores, same)
    assert found.folds == pytest.approx(expected)
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.correct.mean() == pytest.approx(np.average(expected, weights=[61] * 3 + [60] * 7))
    with pytest.raises(UserError, match="9 pairs cannot be divided into 10 folds"):
        fold_accuracy(scores[:9], same[:9])
