import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.templates import class_templates, pool_templates


def test_templates_by_hand():
    vectors = np.array([[3.0, 0.0], [0.0, 5.0], [0.0, 2.0]])
    templates = class_templates(vectors, np.array([0, 0, 1]))
    assert np.allclose(templates, [[2**-0.5, 2**-0.5], [0, 1]])


def naive_pool(embeddings, templates, media, flipped, scores, media_mean, normalize_images):
    grouped = {}
    for row, vector in enumerate(embeddings.astype(np.float64)):
        vector = vector if flipped is None else vector + flipped[row]
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
    embeddings, flipped = rng.normal(size=(2, 100, 6)).astype(np.float32)
    templates = rng.choice([3, 11, 12, 900, 5000], 100)
    media = rng.integers(0, 4, 100)  # the same ids in every template
    options = {
        "flipped": flipped if full else None,
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


def test_pooling_errors():
    good = np.ones((3, 2))
    bad = good * [[1], [np.inf], [1]]
    with pytest.raises(UserError, match="embeddings has NaN or infinite values in row 1"):
        pool_templates(bad, [1, 1, 2], [1, 1, 1])
    with pytest.raises(UserError, match="flipped has NaN or infinite values in row 1"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], flipped=bad)
    with pytest.raises(UserError, match="pooled vector of template 7 is zero"):
        pool_templates(good, [1, 1, 7], [1, 1, 1], flipped=good * [[1], [1], [-1]])
    with pytest.raises(UserError, match="scores has a NaN or infinite value in row 2"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], scores=[1, 1, np.nan])
    with pytest.raises(UserError, match=r"scores must have the shape \(3,\)"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], scores=[1, 1])
    with pytest.raises(UserError, match=r"flipped has the shape \(2, 2\), but embeddings"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], flipped=good[:2])
    with pytest.raises(UserError, match="media has 2 entries, but there are 3 rows"):
        pool_templates(good, [1, 1, 2], [1, 1])
    with pytest.raises(UserError, match=r"embeddings must have the shape \(images, dim\)"):
        pool_templates(good[0], [1], [1])
    with pytest.raises(UserError, match="embeddings must be floating point"):
        pool_templates(good.astype(int), [1, 1, 2], [1, 1, 1])
