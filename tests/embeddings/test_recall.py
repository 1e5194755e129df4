import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unibct.embeddings import recall
from unibct.embeddings.recall import (
    ModelRecall,
    model_recall,
    pixel_vectors,
    recall_at_1,
    sample_classes,
)
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


def test_a_model_must_go_a_tenth_of_the_way_from_raw_pixels_to_perfect():
    for model, pixels, too_weak in (0.279, 0.2, 1), (0.281, 0.2, 0), (0.1, 0.2, 1), (1.0, 1.0, 0):
        assert ModelRecall(model, pixels).too_weak == bool(too_weak)
    described = {"recall_at_1": 0.3, "pixel_recall_at_1": 0.25, "too_weak": True}
    assert ModelRecall(0.3, 0.25).as_json() == described
    assert str(ModelRecall(0.3, 0.25)) == "recall@1 30.0 % (raw pixels 25.0 %)"


def test_pixel_vectors_shrink_by_averaging_and_have_no_mean():
    rng = np.random.default_rng(0)
    large = rng.integers(256, size=(3, 64, 96, 3), dtype=np.uint8)
    means = large.reshape(3, 32, 2, 32, 3, 3).mean(axis=(2, 4))  # blocks of 2×3 pixels
    expected = means.transpose(0, 3, 1, 2).reshape(3, -1)
    expected -= expected.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(pixel_vectors(large), expected, atol=1e-3)
    small = rng.integers(256, size=(2, 8, 5), dtype=np.uint8)
    assert pixel_vectors(small).shape == (2, 40)


def test_brightness_does_not_change_what_is_near():
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    vectors = pixel_vectors(np.concatenate([image, image + 100, 63 - image]))
    np.testing.assert_allclose(np.corrcoef(vectors)[0], [1, 1, -1], atol=1e-6)


def test_a_model_is_measured_on_the_images_whose_pixels_are_read():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 5)
    pixels = rng.integers(256, size=(100, 6, 6), dtype=np.uint8)
    strength = model_recall(np.eye(20)[labels], labels, pixels.__getitem__)
    assert strength is not None
    assert strength.recall_at_1 == 1.0
    assert strength.pixel_recall_at_1 == pytest.approx(0.05, abs=0.06)
    assert model_recall(np.eye(3), np.arange(3), pixels.__getitem__) is None
