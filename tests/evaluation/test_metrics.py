import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve as sklearn_roc
from sklearn.metrics import top_k_accuracy_score

import unibct
from unibct.evaluation.metrics import mate_ranks, roc_curve, strict_threshold, tar_at_far

scores_strategy = st.lists(st.integers(-20, 20), min_size=1, max_size=60).map(
    lambda xs: np.array(xs) / 20
)


def test_tar_by_hand():
    genuine = np.array([0.9, 0.8, 0.5, 0.2])
    impostor = np.array([0.7, 0.6, 0.4, 0.3, 0.1, 0.0, -0.1, -0.2, -0.3, -0.4])
    # FAR 0.1 allows one false accept (0.7): all above 0.6 are accepted.
    assert tar_at_far(genuine, impostor, [0.01, 0.1, 0.2, 1.0]) == {
        0.01: 0.5,
        0.1: 0.5,
        0.2: 0.75,
        1.0: 1.0,
    }


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


@given(scores_strategy, scores_strategy)
def test_roc_and_nearest_rule_equal_scikit_learn(genuine, impostor):
    labels = np.r_[np.ones(len(genuine)), np.zeros(len(impostor))]
    fpr, tpr, _ = sklearn_roc(labels, np.r_[genuine, impostor])
    ours = roc_curve(genuine, impostor)
    assert np.allclose(ours.far, fpr)
    assert np.allclose(ours.tar, tpr)
    # The field's script, with its flips.
    fpr, tpr = np.flipud(fpr), np.flipud(tpr)
    for far in (1e-4, 0.05, 0.1, 0.5):
        _, index = min(zip(abs(fpr - far), range(len(fpr)), strict=True))
        assert tar_at_far(genuine, impostor, [far], rule="nearest")[far] == pytest.approx(
            tpr[index]
        )


def test_verification_scores_rows_by_cosine():
    rng = np.random.default_rng(0)
    query, gallery = rng.normal(size=(2, 400, 6))
    same = rng.random(400) < 0.3
    gallery[same] += 2 * query[same]
    scores = (query * gallery).sum(1) / np.linalg.norm(query, axis=1)
    scores /= np.linalg.norm(gallery, axis=1)
    want = tar_at_far(scores[same], scores[~same], [0.01, 0.1])
    assert unibct.verification(query, gallery, same, fars=(0.01, 0.1)) == want
    tensors = (torch.from_numpy(a) for a in (query, gallery, same))
    assert unibct.verification(*tensors, fars=(0.01, 0.1)) == want
    assert list(unibct.verification(query, gallery, same)) == [1e-4]


def test_identification_equals_scikit_learn():
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(9, 5))
    labels = rng.integers(0, 9, 300)
    query = gallery[labels] + 1.5 * rng.normal(size=(300, 5))
    ours = unibct.identification(query, labels, gallery, np.arange(9), ks=(1, 2, 5))
    scores = query @ (gallery / np.linalg.norm(gallery, axis=1, keepdims=True)).T
    for k, accuracy in ours.items():
        assert accuracy == pytest.approx(top_k_accuracy_score(labels, scores, k=k))
    tensors = unibct.identification(
        torch.from_numpy(query), torch.from_numpy(labels), torch.from_numpy(gallery), np.arange(9)
    )
    assert tensors == {1: ours[1], 5: ours[5]}


@given(st.integers(0, 10_000))
def test_identification_equals_a_naive_loop_and_ignores_the_gallery_order(seed):
    rng = np.random.default_rng(seed)
    gallery, query = rng.normal(size=(14, 3)), rng.normal(size=(20, 3))
    gallery_labels = np.r_[np.arange(5), rng.integers(0, 5, 9)]
    labels = rng.integers(0, 5, 20)
    ours = unibct.identification(query, labels, gallery, gallery_labels, ks=(1, 3))
    for k in (1, 3):
        hits = 0
        for q, label in zip(query, labels, strict=True):
            cosines = gallery @ q / np.linalg.norm(gallery, axis=1)
            hits += label in gallery_labels[np.argsort(-cosines)[:k]]
        assert ours[k] == pytest.approx(hits / 20)
    order = rng.permutation(14)
    again = unibct.identification(query, labels, gallery[order], gallery_labels[order], ks=(1, 3))
    assert ours == again


def test_a_tie_never_flatters():
    scores = np.array([[0.5, 0.5, 0.1]])
    assert mate_ranks(scores, np.array([0]), np.arange(3)).tolist() == [1]
    assert mate_ranks(scores, np.array([1]), np.arange(3)).tolist() == [1]
    constant = np.ones((4, 2))
    found = unibct.identification(constant, [0, 1, 2, 3], constant, [0, 1, 2, 3], ks=(1,))
    assert found == {1: 0.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unibct.verification(np.ones((2, 3)), np.ones((2, 4)), [1, 0]), "dimension 3"),
        (lambda: unibct.verification(np.ones((2, 3)), np.ones((3, 3)), [1, 0]), "row-wise"),
        (lambda: unibct.verification(np.ones((2, 3)), np.ones((2, 3)), [1, 1]), "no impostor"),
        (lambda: unibct.verification(np.ones((2, 3)), np.ones((2, 3)), [0, 0]), "no genuine"),
        (lambda: unibct.verification(np.ones((2, 3)), np.ones((2, 3)), [1]), "same must have"),
        (lambda: unibct.verification(np.ones((2, 3)), np.ones((2, 3)), [3, 0]), "True or False"),
        (lambda: unibct.verification(np.ones((2, 3)), np.ones((2, 3)), ["a", ""]), "True or"),
        (
            lambda: unibct.verification(np.ones((2, 3)), np.ones((2, 3)), [1, 0], fars=[0]),
            "false accept rate",
        ),
        (
            lambda: unibct.identification(np.ones((2, 3)), [0, 7], np.ones((1, 3)), [0]),
            "query row 1 has label 7",
        ),
        (
            lambda: unibct.identification(np.ones((2, 3)), [0, 0], np.ones((1, 3)), [0], ks=[0]),
            "k must be",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unusual_arrays_give_the_same_result():
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(9, 5)).astype(np.float32)
    labels = rng.integers(0, 9, 60)
    query = (gallery[labels] + rng.normal(size=(60, 5))).astype(np.float32)
    want = unibct.identification(query, labels, gallery, np.arange(9))
    for changed in (query * 1e-25, query * 1e25, query.astype(">f4"), query.astype(np.longdouble)):
        assert unibct.identification(changed, labels.tolist(), gallery, range(9)) == want
    assert unibct.identification(query[::-1], labels[::-1], gallery, range(9)) == want
    reversed_ = unibct.class_prototypes(query[::-1], np.zeros(60, dtype=np.int32))
    assert np.allclose(reversed_, unibct.class_prototypes(query, [0] * 60), atol=1e-5)
    loss = unibct.arcface(query[::-1], gallery, labels[::-1].astype(np.uint16))
    assert torch.allclose(loss, unibct.arcface(query, gallery, labels), rtol=1e-4)
