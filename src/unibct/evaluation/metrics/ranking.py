"""How well a whole ranking is ordered: average precision over an image-level gallery."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, lowered
from unibct.evaluation.score_table import NormalizedRows, mate_places

_SCORES_AT_ONCE = 1_000_000
_FEW_MATES = 20


def average_precisions(
    query: Floats | NormalizedRows, query_labels: Ints, gallery: Floats, gallery_labels: Ints
) -> Floats:
    """Return each query's average precision over the ranking of all gallery images.

    The average precision is the mean, over the query's mates, of the share of mates among the
    images down to that mate. An image of another class that scores exactly as high as a mate
    counts as better, so the order of the gallery does not matter.

    Args:
        query: (queries, dim) normalised.
        query_labels: (queries,).
        gallery: (images, dim) normalised; no query is among them.
        gallery_labels: (images,), with at least one mate for each query.

    Returns:
        (queries,) in (0, 1].
    """
    precisions = np.empty(len(query))
    block = max(1, _SCORES_AT_ONCE // len(gallery))
    for start in range(0, len(query), block):
        scores = query[start : start + block] @ gallery.T
        mates = mate_places(query_labels[start : start + block], gallery_labels)
        scores[mates] = lowered(scores[mates])
        precisions[start : start + block] = block_precisions(scores, *mates)
    return precisions


def block_precisions(scores: Floats, rows: Ints, columns: Ints) -> Floats:
    """Return the average precision of each row of scores, which are overwritten.

    Args:
        scores: (queries, images).
        rows: (mates,) the row of each mate, ascending.
        columns: (mates,) its column.
    """
    counts = np.bincount(rows, minlength=len(scores))
    most = int(counts.max())
    is_mate = np.arange(most) < counts[:, None]
    # Each row's mate scores in descending order, filled up with infinity.
    order = np.lexsort((-scores[rows, columns], rows))
    mate_scores = np.full(is_mate.shape, np.inf, dtype=scores.dtype)
    mate_scores[is_mate] = scores[rows[order], columns[order]]
    scores[rows, columns] = -np.inf
    mates_so_far = np.arange(1, most + 1)
    others_before = _count_at_least(scores, mate_scores, is_mate)
    precision = np.where(is_mate, mates_so_far / (mates_so_far + others_before), 0)
    return precision.sum(axis=1) / counts


def _count_at_least(others: Floats, limits: Floats, wanted: NDArray[np.bool_]) -> Ints:
    """Count in each row the entries that are at least as high as each of the row's limits."""
    counts = np.zeros(limits.shape, dtype=np.int64)
    if limits.shape[1] <= _FEW_MATES:  # then one pass per mate is faster than sorting
        for column in range(limits.shape[1]):
            counts[:, column] = np.count_nonzero(others >= limits[:, [column]], axis=1)
        return counts
    ordered = np.sort(others, axis=1)
    for row in range(len(limits)):
        chosen = wanted[row]
        below = np.searchsorted(ordered[row], cast(Floats, limits[row, chosen]), side="left")
        counts[row, chosen] = ordered.shape[1] - below
    return counts
