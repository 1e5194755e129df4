import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.templates import (
    chosen_gallery,
    class_templates,
    pool_templates,
    split_for,
    split_gallery,
)


def test_protocol_takes_a_quarter_and_at_least_one():
    labels = np.repeat(np.arange(4), [1, 3, 8, 21])
    split = split_gallery(labels, seed=3)
    assert np.bincount(labels[split.gallery]).tolist() == [1, 1, 2, 5]
    assert np.array_equal(np.union1d(split.gallery, split.query), np.arange(len(labels)))
    assert not set(split.gallery) & set(split.query)
    assert np.array_equal(split_gallery(labels, seed=3).query, split.query)
    assert not np.array_equal(split_gallery(labels, seed=4).query, split.query)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 0], "two classes"),
        *((labels, "fewer than two classes") for labels in ([0, 1, 2], [0, 0, 1])),
        ([0, 0, 2, 2], "gap"),
    ],
)
def test_bad_labels_are_named(labels, message):
    with pytest.raises(ValueError, match=message):
        split_gallery(labels)


def test_chosen_queries_and_gallery():
    labels = [0, 0, 0, 1, 1, 1]
    split = chosen_gallery(labels, query=[5, 1], gallery=[0, 3, 4])
    assert split.query.tolist() == [1, 5]
    assert split.gallery.tolist() == [0, 3, 4]
    for query, gallery, message in (
        ([1], [1, 3], "image 1 is a query and in the gallery"),
        ([1], [0], "class 1 has no image in the gallery"),
        ([], [0, 3], "there is no query"),
        ([1, 2], [0, 3], "all queries are of one class"),
        ([1, -1], [0, 3, 5], "query has the index -1; the 6 images count from 0"),
        ([1, 4], [0, 3, 6], "gallery has the index 6; the 6 images count from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            chosen_gallery(labels, np.array(query, dtype=int), gallery)


def test_a_split_is_for_its_own_labels():
    labels = np.repeat(np.arange(3), 4)
    split = split_gallery(labels, seed=1)
    assert split_for(labels.tolist(), split) is split
    assert np.array_equal(split_for(labels, None, seed=1).query, split.query)
    with pytest.raises(ValueError, match="the split was made for other labels than these"):
        split_for(labels[::-1], split)


def test_classes_without_queries_are_not_compared_with_each_other():
    assert split_gallery(np.repeat(np.arange(50), 4)).compared_classes == 50
    long_tail = split_gallery(np.r_[np.repeat([0, 1, 2], 4), np.arange(3, 40)])
    assert (long_tail.classes, long_tail.query_classes) == (40, 3)
    pairs = {frozenset((q, t)) for q in range(3) for t in range(40) if q != t}
    as_many = long_tail.compared_classes
    assert as_many * (as_many - 1) / 2 <= len(pairs) < as_many * (as_many + 1) / 2


def test_templates_by_hand():
    vectors = np.array([[3.0, 0.0], [0.0, 5.0], [0.0, 2.0]])
    templates = class_templates(vectors, np.array([0, 0, 1]))
    assert np.allclose(templates, [[2**-0.5, 2**-0.5], [0, 1]])


def naive_pool(embeddings, templates, media, scores, media_mean, normalize_images):
    grouped = {}
    for row, vector in enumerate(embeddings.astype(np.float64)):
        vector = vector / np.linalg.norm(vector) if normalize_images else vector
        vector = vector if scores is None else vector * scores[row]
        grouped.setdefault(templates[row], {}).setdefault(media[row], []).append(vector)
    ids = sorted(grouped)
    inner = np.mean if media_mean else np.sum
    sums = [sum(inner(vectors, axis=0) for vectors in grouped[i].values()) for i in ids]
    return ids, np.array([s / np.linalg.norm(s) for s in sums])


@pytest.mark.parametrize("media_mean", [True, False])
@pytest.mark.parametrize("normalize_images", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_pooling_equals_loops(monkeypatch, media_mean, normalize_images, full):
    monkeypatch.setattr("unibct.evaluation.templates._ROWS_AT_ONCE", 7)
    rng = np.random.default_rng(5)
    embeddings = rng.normal(size=(100, 6)).astype(np.float32)
    templates = rng.choice([3, 11, 12, 900, 5000], 100)
    media = rng.integers(0, 4, 100)  # the same ids in every template
    options = {
        "scores": rng.uniform(0.2, 1, 100) if full else None,
        "media_mean": media_mean,
        "normalize_images": normalize_images,
    }
    ids, vectors = pool_templates(embeddings, templates, media, **options)
    expected_ids, expected = naive_pool(embeddings, templates, media, **options)
    assert ids.tolist() == expected_ids
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, expected, atol=1e-6)


def test_pooling_by_hand():
    """Media 1 has two frames: their mean counts as one image."""
    vectors = np.array([[2.0, 0], [4, 0], [0, 3], [0, 5]])
    ids, pooled = pool_templates(vectors, [8, 8, 8, 2], [1, 1, 2, 1])
    assert ids.tolist() == [2, 8]
    assert np.allclose(pooled, [[0, 1], [2**-0.5, 2**-0.5]])
    _, summed = pool_templates(vectors, [8, 8, 8, 2], [1, 1, 2, 1], media_mean=False)
    assert np.allclose(summed[1], np.array([6, 3]) / 45**0.5)
    _, scored = pool_templates(vectors, [8, 8, 8, 2], [1, 1, 2, 1], scores=[1, 0, 1 / 3, 1])
    assert np.allclose(scored[1], [2**-0.5, 2**-0.5])


GOOD = np.ones((3, 2))
BAD = GOOD * [[1], [np.inf], [1]]


@pytest.mark.parametrize(
    ("embeddings", "templates", "media", "options", "message"),
    [
        (BAD, [1, 1, 2], [1] * 3, {}, "embeddings has NaN or infinite values in row 1"),
        (GOOD * [[1], [1], [0]], [1, 1, 7], [1] * 3, {}, "template 7 is zero"),
        (GOOD, [1, 1, 2], [1] * 3, {"scores": [1, 1, np.nan]}, "a NaN or infinite value in row 2"),
        (GOOD, [1, 1, 2], [1] * 3, {"scores": [1, 1]}, r"scores must have the shape \(3,\)"),
        (GOOD, [1, 1, 2], [1] * 2, {}, "media has 2 entries, but there are 3 rows"),
        (GOOD[0], [1], [1], {}, r"embeddings must have the shape \(images, dim\)"),
        (GOOD.astype(int), [1, 1, 2], [1] * 3, {}, "embeddings must be floating point"),
    ],
)
def test_pooling_errors(embeddings, templates, media, options, message):
    with pytest.raises(UserError, match=message):
        pool_templates(embeddings, templates, media, **options)
