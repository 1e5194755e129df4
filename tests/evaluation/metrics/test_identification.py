import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import top_k_accuracy_score

import unibct
from unibct.evaluation.metrics.identification import mate_ranks


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


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0, 7], {}, "query row 1 has label 7"),
        ([0, 0], {"ks": [0]}, "k must be"),
    ],
)
def test_bad_input_is_named(labels, options, message):
    with pytest.raises(ValueError, match=message):
        unibct.identification(np.ones((2, 3)), labels, np.ones((1, 3)), [0], **options)
