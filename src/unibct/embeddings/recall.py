"""Recall@1: how often the nearest other image has the same class, and a sample to measure it on."""

from typing import Any

import numpy as np

from unibct.arrays import Ints, checked_embeddings, checked_labels, lowered, normalized
from unibct.errors import UserError

_SCORES_AT_ONCE = 16_000_000


def recall_at_1(vectors: Any, labels: Any) -> float:
    """Return the share of images whose nearest other image by cosine has the same class.

    Images that are the only one of their class are found by others, but ask nothing themselves.
    An image of another class that is exactly as near as the mate counts as nearer.

    Args:
        vectors: (images, dim).
        labels: (images,) integers.
    """
    rows = normalized(checked_embeddings(vectors, "vectors"))
    classes = checked_labels(labels, len(rows))
    _, places, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    asking = np.flatnonzero(sizes[places] > 1)
    if not len(asking):
        raise UserError("recall@1 needs a class with at least two images")
    correct = 0
    block = max(1, _SCORES_AT_ONCE // len(rows))
    for begin in range(0, len(asking), block):
        queries = asking[begin : begin + block]
        scores = rows[queries] @ rows.T
        scores[np.arange(len(queries)), queries] = -np.inf
        mates = classes[queries][:, None] == classes[None, :]
        nearest_mate = np.where(mates, scores, -np.inf).max(axis=1)
        nearest_other = np.where(mates, -np.inf, scores).max(axis=1)
        correct += int((lowered(nearest_mate) > nearest_other).sum())
    return correct / len(asking)


def sample_classes(labels: Any, at_most: int, *, seed: int = 0) -> Ints:
    """Return the sorted rows of whole classes, drawn until there are ``at_most`` images.

    Classes of one image are left out. Of a class that would be more than half of the sample, fewer
    images are drawn, so that there are always two classes.

    Args:
        labels: (images,) integers.
        at_most: number of images.
        seed: chooses the classes; all of them if they fit.
    """
    classes = checked_labels(labels)
    _, numbers = np.unique(classes, return_inverse=True)
    sizes = np.bincount(numbers)
    rng, largest, images = np.random.default_rng(seed), max(at_most // 2, 2), 0
    by_class = np.argsort(rng.permutation(len(sizes))[numbers], kind="stable")
    chosen: list[Ints] = []
    for begin, end in _runs(numbers[by_class]):
        rows = by_class[begin:end]
        if len(rows) > largest:
            rows = rng.permutation(rows)[:largest]
        if len(rows) > 1 and (len(chosen) < 2 or images + len(rows) <= at_most):
            chosen.append(rows)
            images += len(rows)
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def _runs(values: Ints) -> list[tuple[int, int]]:
    """Return begin and end of each stretch of equal values."""
    if not len(values):
        return []
    ends = [*(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
