import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unibct.embeddings import recall
from unibct.embeddings.recall import recall_at_1, sample_classes
from unibct.errors import UserError


def naive_recall(vectors: np.ndarray, labels: np.ndarray) -> float:
    """The definition, image by image."""
    hits = []
    for row, vector in enumerate(vectors):
        others = [other for other in range(len(vectors)) if other != row]
        if not any(labels[other] == labels[row] for other in others):
            continue
        cosines = [
            vector @ vectors[o] / np.linalg.norm(vector) / np.linalg.norm(vectors[o])
            for o in others
        ]
        hits.append(labels[others[int(np.argmax(cosines))]] == labels[row])
    return float(np.mean(hits))


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(4, 30))
def test_recall_is_the_share_of_images_whose_nearest_neighbour_has_their_class(seed, classes, n):
    rng = np.random.default_rng(seed)
    vectors, labels = rng.normal(size=(n, 3)), rng.integers(classes, size=n)
    if np.bincount(labels).max() < 2:
        return
    assert recall_at_1(vectors, labels) == pytest.approx(naive_recall(vectors, labels))


def test_a_tie_with_another_class_is_no_hit():
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert recall_at_1(vectors, [0, 0, 1, 2]) == 0.0
    assert recall_at_1(vectors, [0, 0, 0, 2]) == 1.0


def test_blocks_do_not_change_the_recall(monkeypatch):
    rng = np.random.default_rng(1)
    vectors, labels = rng.normal(size=(40, 4)), rng.integers(6, size=40)
    whole = recall_at_1(vectors, labels)
    monkeypatch.setattr(recall, "_SCORES_AT_ONCE", 120)
    assert recall_at_1(vectors, labels) == whole


def test_recall_needs_two_images_of_a_class():
    with pytest.raises(UserError, match="at least two images"):
        recall_at_1(np.eye(3), [0, 1, 2])


@given(st.integers(0, 10_000), st.integers(4, 60))
def test_a_sample_has_whole_classes_and_few_images(seed, at_most):
    labels = np.random.default_rng(seed).integers(12, size=70)
    rows = sample_classes(labels, at_most, seed=seed)
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= at_most
    sizes = np.bincount(labels, minlength=12)
    sampled_sizes = np.bincount(labels[rows], minlength=12)
    whole_or_cut = np.minimum(sizes, at_most // 2)
    assert np.array_equal(sampled_sizes, np.where(sampled_sizes > 0, whole_or_cut, 0))
    assert (sampled_sizes > 0).sum() >= 2
    assert (sampled_sizes != 1).all()
    assert np.array_equal(rows, sample_classes(labels, at_most, seed=seed))


def test_all_classes_are_taken_if_they_fit_but_not_those_of_one_image():
    assert sample_classes([3, 1, 3, 2, 1], 100).tolist() == [0, 1, 2, 4]
    assert sample_classes([0, 1, 2], 100).tolist() == []
