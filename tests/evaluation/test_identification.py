from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, top_k_accuracy_score

import unibct
from unibct.errors import UserError
from unibct.evaluation import identification as ranking
from unibct.evaluation.identification import (
    OpenSearch,
    average_precisions,
    identification,
    mate_ranks,
)
from unibct.losses import arcface


def test_identification_equals_scikit_learn():
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(9, 5))
    labels = rng.integers(0, 9, 300)
    query = gallery[labels] + 1.5 * rng.normal(size=(300, 5))
    ours = identification(query, labels, gallery, np.arange(9), ks=(1, 2, 5))
    scores = query @ (gallery / np.linalg.norm(gallery, axis=1, keepdims=True)).T
    for k, accuracy in ours.items():
        assert accuracy == pytest.approx(top_k_accuracy_score(labels, scores, k=k))
    tensors = identification(
        torch.from_numpy(query), torch.from_numpy(labels), torch.from_numpy(gallery), np.arange(9)
    )
    assert tensors == {1: ours[1], 5: ours[5]}


@given(st.integers(0, 10_000))
def test_identification_equals_a_naive_loop_and_ignores_the_gallery_order(seed):
    rng = np.random.default_rng(seed)
    gallery, query = rng.normal(size=(14, 3)), rng.normal(size=(20, 3))
    gallery_labels = np.r_[np.arange(5), rng.integers(0, 5, 9)]
    labels = rng.integers(0, 5, 20)
    ours = identification(query, labels, gallery, gallery_labels, ks=(1, 3))
    for k in (1, 3):
        hits = 0
        for q, label in zip(query, labels, strict=True):
            cosines = gallery @ q / np.linalg.norm(gallery, axis=1)
            hits += label in gallery_labels[np.argsort(-cosines)[:k]]
        assert ours[k] == pytest.approx(hits / 20)
    order = rng.permutation(14)
    again = identification(query, labels, gallery[order], gallery_labels[order], ks=(1, 3))
    assert ours == again


def test_a_tie_never_flatters():
    """Mate and non-mate score the same: the non-mate stands first, in whatever order."""
    scores = np.array([[0.5, 0.5, 0.1]])
    same = np.array([[1.0, 0.0], [1.0, 0.0]])
    for label in (0, 1):
        assert mate_ranks(scores, np.array([label]), np.arange(3)).tolist() == [1]
        labels = np.array([label, 1 - label])
        assert average_precisions(same[:1], np.array([0]), same, labels).tolist() == [0.5]
    constant = np.ones((4, 2))
    found = identification(constant, [0, 1, 2, 3], constant, [0, 1, 2, 3], ks=(1,))
    assert found == {1: 0.0}


def test_unusual_arrays_give_the_same_result():
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(9, 5)).astype(np.float32)
    labels = rng.integers(0, 9, 60)
    query = (gallery[labels] + rng.normal(size=(60, 5))).astype(np.float32)
    want = identification(query, labels, gallery, np.arange(9))
    for changed in (query * 1e-25, query * 1e25, query.astype(">f4"), query.astype(np.longdouble)):
        assert identification(changed, labels.tolist(), gallery, range(9)) == want
    assert identification(query[::-1], labels[::-1], gallery, range(9)) == want
    reversed_ = unibct.class_prototypes(np.zeros(60, dtype=np.int32), old=query[::-1])
    assert np.allclose(reversed_, unibct.class_prototypes([0] * 60, old=query), atol=1e-5)
    loss = arcface(query[::-1], gallery, labels[::-1].astype(np.uint16))
    assert torch.allclose(loss, arcface(query, gallery, labels), rtol=1e-4)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [([0, 7], {}, "query row 1 has label 7"), ([0, 0], {"ks": [0]}, "k must be")],
)
def test_bad_input_is_named(labels, options, message):
    with pytest.raises(ValueError, match=message):
        identification(np.ones((2, 3)), labels, np.ones((1, 3)), [0], **options)


# A mate that scores exactly as high as the threshold, or as another subject, is not found.
TIED = OpenSearch(
    mate=np.array([0.5, 0.7, 0.7]),
    other=np.array([0.1, 0.7, 0.6]),
    unmated=np.array([0.5, 0.2]),
    mate_classes=np.array([0, 1, 2]),
    unmated_classes=np.array([0, 1]),
)


def test_open_search_by_hand():
    search = OpenSearch(
        mate=np.array([0.9, 0.7, 0.6, 0.3]),
        other=np.array([0.2, 0.8, 0.1, 0.1]),
        unmated=np.array([0.5, 0.1, 0.65, 0.2, 0.4, 0.3, 0.0, 0.35, 0.15, 0.25]),
    )
    assert search.tpir(0.01) == 0.25  # at 0.65: only the first, the second has a better other
    assert search.tpir(0.1) == 0.25
    assert search.tpir(0.2) == 0.5  # at 0.5
    assert search.tpir(0.5) == 0.5  # at 0.3: a score equal to the threshold is no hit
    assert search.tpir(1.0) == 0.75  # at 0.0
    assert [TIED.tpir(fpir) for fpir in (0.5, 1.0)] == pytest.approx([1 / 3, 2 / 3])
    none = np.zeros(0)
    for wrong, fpir, message in (
        (search, 0, r"lies in \(0, 1\], not 0"),
        (replace(search, unmated=none), 0.1, "no probe is without a mate"),
        (replace(search, mate=none, other=none), 0.1, "no probe is with a mate"),
    ):
        with pytest.raises(UserError, match=message):
            wrong.tpir(fpir)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_average_precision_by_hand():
    """Mates at ranks 1, 3 and 4: (1/1 + 2/3 + 3/4)/3."""
    gallery = unit(np.array([[1.0, 0.0], [1.0, 0.2], [1.0, 0.4], [1.0, 0.6], [0.0, 1.0]]))
    labels = np.array([7, 1, 7, 7, 2])
    found = average_precisions(np.array([[1.0, 0.0]]), np.array([7]), gallery, labels)
    assert found.tolist() == [pytest.approx((1 + 2 / 3 + 3 / 4) / 3)]


@given(st.integers(0, 10_000))
def test_average_precision_equals_scikit_learn_and_ignores_the_gallery_order(seed):
    rng = np.random.default_rng(seed)
    gallery, query = unit(rng.normal(size=(30, 4))), unit(rng.normal(size=(12, 4)))
    gallery_labels = np.r_[np.arange(5), rng.integers(0, 5, 25)]
    labels = rng.integers(0, 5, 12)
    found = average_precisions(query, labels, gallery, gallery_labels)
    for value, vector, label in zip(found, query, labels, strict=True):
        want = average_precision_score(gallery_labels == label, gallery @ vector)
        assert value == pytest.approx(want)
    order = rng.permutation(30)
    again = average_precisions(query, labels, gallery[order], gallery_labels[order])
    assert np.allclose(again, found)


def test_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(1)
    gallery, query = unit(rng.normal(size=(20, 4))), unit(rng.normal(size=(15, 4)))
    labels, gallery_labels = rng.integers(0, 4, 15), np.arange(20) % 4
    data = query, labels, gallery, gallery_labels
    whole, found = average_precisions(*data), identification(*data)
    for limit in ("_RANKING_SCORES_AT_ONCE", "_SCORES_AT_ONCE"):
        monkeypatch.setattr(ranking, limit, 50)
    assert np.array_equal(average_precisions(*data), whole)
    assert identification(*data) == found


def test_few_and_many_mates_are_counted_alike(monkeypatch):
    rng = np.random.default_rng(2)
    gallery, query = unit(rng.normal(size=(90, 4))), unit(rng.normal(size=(30, 4)))
    labels, gallery_labels = rng.integers(0, 3, 30), np.arange(90) % 3
    gallery[:20] = gallery[20:40]  # ties
    sorted_once = average_precisions(query, labels, gallery, gallery_labels)
    monkeypatch.setattr(ranking, "_FEW_MATES", 100)
    counted = average_precisions(query, labels, gallery, gallery_labels)
    assert np.array_equal(sorted_once, counted)
