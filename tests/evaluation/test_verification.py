import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve as sklearn_roc
from sklearn.model_selection import KFold

from unibct.errors import UserError
from unibct.evaluation.verification import (
    carried_fars,
    far_note,
    fold_accuracy,
    headline_far,
    roc_curve,
    strict_threshold,
    tar_at_far,
    tar_name,
    verification,
)


def test_fars_follow_the_number_of_class_pairs():
    # 776 · 775/2 = 300,700 class pairs, of which 1e-4 is just over thirty.
    assert carried_fars(776) == [1e-4, 1e-3, 1e-2, 1e-1]
    assert headline_far(776) == 1e-4
    assert headline_far(318) == 1e-3
    assert headline_far(318, 0.05) == 0.05
    assert headline_far(3) == 1e-1
    assert headline_far(5, 0.9) == 0.9
    assert headline_far(30, 1e-6) == 1e-6  # what a user asks for is not replaced
    for far, name in [(1e-3, "1e-3"), (0.015, "0.015"), (0.25, "0.25"), (1e-4, "1e-4"), (1, "1")]:
        assert tar_name(far) == f"TAR@{name}"
    with pytest.raises(ValueError, match="false accept rate"):
        headline_far(50, 5)


def test_a_rate_that_the_classes_cannot_measure_is_said():
    assert far_note(1e-4, None, 776) is None
    assert far_note(0.05, 0.05, 318) is None
    assert far_note(1e-3, None, 318).startswith("TAR@1e-3 instead of TAR@1e-4: 318 classes cannot")
    note = far_note(1e-6, 1e-6, 3531, "subjects")
    assert note.startswith("3531 subjects are too few to measure TAR@1e-6 well")
    assert note.endswith("7747 are needed")
    assert carried_fars(7747)[0] == 1e-6
    assert carried_fars(7746)[0] == 1e-5


few_levels = st.lists(st.integers(-20, 20), min_size=1, max_size=60)
scores_strategy = few_levels.map(lambda levels: np.array(levels) / 20)


def test_tar_by_hand():
    genuine = np.array([0.9, 0.8, 0.5, 0.2])
    impostor = np.array([0.7, 0.6, 0.4, 0.3, 0.1, 0.0, -0.1, -0.2, -0.3, -0.4])
    # FAR 0.1 allows one false accept (0.7): all above 0.6 are accepted.
    want = {0.01: 0.5, 0.1: 0.5, 0.2: 0.75, 1.0: 1.0}
    assert tar_at_far(genuine, impostor, list(want)) == want
    # At the threshold itself, 0.6, nothing is accepted.
    assert tar_at_far(np.append(genuine, 0.6), impostor, [0.1]) == {0.1: 0.4}


@given(scores_strategy, scores_strategy, st.floats(0.001, 1))
def test_strict_threshold_is_the_lowest_that_keeps_the_rate(genuine, impostor, far):
    threshold = strict_threshold(impostor, far)
    assert np.mean(impostor > threshold) <= far + 1e-12
    tar = tar_at_far(genuine, impostor, [far])[far]
    for candidate in np.concatenate([impostor, genuine, [-2.0]]):
        if np.mean(impostor > candidate) <= far:
            assert np.mean(genuine > candidate) <= tar


@given(scores_strategy, scores_strategy)
def test_tar_grows_with_far(genuine, impostor):
    tars = tar_at_far(genuine, impostor, [0.001, 0.01, 0.1, 0.3, 1.0])
    assert list(tars.values()) == sorted(tars.values())


distinct_levels = st.lists(st.integers(-200, 200), min_size=2, max_size=60, unique=True)
distinct_scores = distinct_levels.map(lambda levels: np.array(levels) / 200)


@given(distinct_scores, st.data())
def test_roc_and_nearest_rule_equal_scikit_learn(scores, data):
    """Without ties; with them scikit-learn keeps points on straight lines as well."""
    split = data.draw(st.integers(1, len(scores) - 1))
    genuine, impostor = scores[:split], scores[split:]
    labels = np.r_[np.ones(len(genuine)), np.zeros(len(impostor))]
    fpr, tpr, _ = sklearn_roc(labels, np.r_[genuine, impostor])
    ours = roc_curve(genuine, impostor)
    assert np.allclose(ours.far, fpr)
    assert np.allclose(ours.tar, tpr)
    # The field's script, with its flips.
    fpr, tpr = np.flipud(fpr), np.flipud(tpr)
    for far in (1e-4, 0.05, 0.1, 0.5):
        _, index = min(zip(abs(fpr - far), range(len(fpr)), strict=True))
        tar = tar_at_far(genuine, impostor, [far], rule="nearest")[far]
        assert tar == pytest.approx(tpr[index])


@given(scores_strategy, scores_strategy)
def test_corners_are_where_the_curve_changes_its_direction(genuine, impostor):
    points = [(0.0, 0.0)] + [
        (np.mean(impostor >= threshold), np.mean(genuine >= threshold))
        for threshold in sorted({*genuine, *impostor}, reverse=True)
    ]
    corners = points[:2]  # the first point after the origin stays, as in scikit-learn
    for before, point, after in zip(points[1:], points[2:], points[3:], strict=False):
        rises = [np.subtract(point, before), np.subtract(after, point)]
        if abs(rises[0][0] * rises[1][1] - rises[0][1] * rises[1][0]) > 1e-9:
            corners.append(point)
    corners += points[2:][-1:]
    ours = roc_curve(genuine, impostor)
    assert np.allclose(np.stack([ours.far, ours.tar], axis=1), corners)


def test_tied_float32_scores_give_the_nearest_corner_of_the_distinct_ones():
    """Impostors that tie in float32 make a longer step, but no corner of the curve."""
    genuine = np.array([0.9, 0.1])
    step = 1e-10
    impostor = np.array([0.8, 0.7, 0.6 + step, 0.6, 0.5, 0.4])
    assert len(np.unique(impostor.astype(np.float32))) == 5
    for far in (0.2, 0.45, 0.5, 0.75):
        want = tar_at_far(genuine, impostor, [far], rule="nearest")
        single = genuine.astype(np.float32), impostor.astype(np.float32)
        assert tar_at_far(*single, [far], rule="nearest") == want


def test_verification_scores_rows_by_cosine():
    rng = np.random.default_rng(0)
    query, gallery = rng.normal(size=(2, 400, 6))
    same = rng.random(400) < 0.3
    gallery[same] += 2 * query[same]
    scores = (query * gallery).sum(1) / np.linalg.norm(query, axis=1)
    scores /= np.linalg.norm(gallery, axis=1)
    want = tar_at_far(scores[same], scores[~same], [0.01, 0.1])
    assert verification(query, gallery, same, fars=(0.01, 0.1)) == want
    tensors = (torch.from_numpy(a) for a in (query, gallery, same))
    assert verification(*tensors, fars=(0.01, 0.1)) == want
    assert list(verification(query, gallery, same)) == [1e-4]


@pytest.mark.parametrize(
    ("gallery", "same", "options", "message"),
    [
        (np.ones((2, 4)), [1, 0], {}, "dimension 3"),
        (np.ones((3, 3)), [1, 0], {}, "row-wise"),
        (np.ones((2, 3)), [1, 1], {}, "no impostor"),
        (np.ones((2, 3)), [0, 0], {}, "no genuine"),
        (np.ones((2, 3)), [1], {}, "same must have"),
        (np.ones((2, 3)), [3, 0], {}, "True or False"),
        (np.ones((2, 3)), ["a", ""], {}, "True or"),
        (np.ones((2, 3)), [1, 0], {"fars": [0]}, "false accept rate"),
    ],
)
def test_bad_input_is_named(gallery, same, options, message):
    with pytest.raises(ValueError, match=message):
        verification(np.ones((2, 3)), gallery, same, **options)


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
    for few in (3, 9):
        with pytest.raises(UserError, match=f"{few} pairs cannot be divided into 10 folds"):
            fold_accuracy(scores[:few], same[:few])
