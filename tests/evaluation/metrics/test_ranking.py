import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from unibct.evaluation.metrics import ranking
from unibct.evaluation.metrics.ranking import average_precisions


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


def test_a_tie_never_flatters():
    """Mate and non-mate score the same: the non-mate stands first, in whatever order."""
    same = np.array([[1.0, 0.0], [1.0, 0.0]])
    for labels in ([0, 1], [1, 0]):
        found = average_precisions(same[:1], np.array([0]), same, np.array(labels))
        assert found.tolist() == [0.5]


def test_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(1)
    gallery, query = unit(rng.normal(size=(20, 4))), unit(rng.normal(size=(15, 4)))
    labels, gallery_labels = rng.integers(0, 4, 15), np.arange(20) % 4
    whole = average_precisions(query, labels, gallery, gallery_labels)
    monkeypatch.setattr(ranking, "_SCORES_AT_ONCE", 50)
    assert np.array_equal(average_precisions(query, labels, gallery, gallery_labels), whole)


def test_few_and_many_mates_are_counted_alike(monkeypatch):
    rng = np.random.default_rng(2)
    gallery, query = unit(rng.normal(size=(90, 4))), unit(rng.normal(size=(30, 4)))
    labels, gallery_labels = rng.integers(0, 3, 30), np.arange(90) % 3
    gallery[:20] = gallery[20:40]  # ties
    sorted_once = average_precisions(query, labels, gallery, gallery_labels)
    monkeypatch.setattr(ranking, "_FEW_MATES", 100)
    counted = average_precisions(query, labels, gallery, gallery_labels)
    assert np.array_equal(sorted_once, counted)
