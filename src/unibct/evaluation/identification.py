"""1:N identification: top-k in a closed set, TPIR in an open set, and average precision."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    Floats,
    Ints,
    checked_embeddings,
    checked_labels,
    normalized,
    require_same_dim,
)
from unibct.errors import UserError
from unibct.evaluation.score_table import NormalizedRows, lowered_scores

_SCORES_AT_ONCE = 16_000_000
_RANKING_SCORES_AT_ONCE = 1_000_000
_FEW_MATES = 20


def identification(
    query: Any,
    query_labels: Any,
    gallery: Any,
    gallery_labels: Any,
    *,
    ks: Iterable[int] = (1, 5),
) -> dict[int, float]:
    """Return k -> the share of queries that find an entry of their own class among the k best.

    Closed set: the gallery must contain each query's class. An entry of another class that scores
    exactly as high as the mate counts as better, so the order of the gallery does not matter.

    Args:
        query: (queries, dim).
        query_labels: (queries,) integers.
        gallery: (entries, dim).
        gallery_labels: (entries,) integers.
        ks: how many of the best entries count, such as 1 and 5.
    """
    query = normalized(checked_embeddings(query, "query"))
    gallery = normalized(checked_embeddings(gallery, "gallery"))
    require_same_dim(query, "query", gallery, "gallery")
    query_labels = checked_labels(query_labels, len(query), "query_labels")
    gallery_labels = checked_labels(gallery_labels, len(gallery), "gallery_labels")
    if not len(query):
        raise UserError("query is empty: there is nothing to identify")
    without_mate = ~np.isin(query_labels, gallery_labels)
    if without_mate.any():
        row = int(without_mate.argmax())
        raise UserError(
            f"query row {row} has label {int(query_labels[row])}, which no gallery entry has; "
            "closed-set identification needs a mate for each query"
        )
    ks = list(ks)
    for k in ks:
        if k < 1:
            raise UserError(f"k must be at least 1, not {k}")
    block = max(1, _SCORES_AT_ONCE // len(gallery))
    ranks = np.empty(len(query), dtype=np.int64)
    for start in range(0, len(query), block):
        part = slice(start, start + block)
        scores, _ = lowered_scores(query[part], query_labels[part], gallery, gallery_labels)
        ranks[part] = mate_ranks(scores, query_labels[part], gallery_labels)
    return {k: float(np.mean(ranks < k)) for k in ks}


def mate_ranks(scores: Floats, query_labels: Ints, gallery_labels: Ints) -> Ints:
    """Count the entries of other classes that score at least as high as each query's best mate.

    From (queries, entries) scores, in which each query has a mate, it makes (queries,) ranks:
    0 means that the mate is found first.
    """
    mates = query_labels[:, None] == gallery_labels[None, :]
    best_mate = np.where(mates, scores, -np.inf).max(axis=1)
    return ((scores >= best_mate[:, None]) & ~mates).sum(axis=1)


@dataclass(frozen=True)
class OpenSearch:
    """The scores in one gallery that an open-set search depends on: some queries have no mate.

    The first two are of the queries with a mate.
    """

    mate: Floats  # (with a mate,) the score of the best mate
    other: Floats  # (with a mate,) the best score of another subject
    unmated: Floats  # (without a mate,) the best score
    mate_classes: Ints | None = None  # (with a mate,) the class of each, for intervals
    unmated_classes: Ints | None = None  # (without a mate,) the class of each

    def tpir(self, fpir: float) -> float:
        """Return the share of mates that score above all others and above the threshold.

        The threshold follows the field's rule: sort the n scores of queries without a mate in
        descending order and take the one at index max(floor(n · fpir) − 1, 0).
        """
        if not 0 < fpir <= 1:
            raise UserError(f"a false positive identification rate lies in (0, 1], not {fpir}")
        if not len(self.mate) or not len(self.unmated):
            missing = "with" if not len(self.mate) else "without"
            raise UserError(
                f"no probe is {missing} a mate in a gallery: the open set needs both kinds"
            )
        place = max(int(len(self.unmated) * fpir + 1e-9) - 1, 0)
        threshold = float(np.sort(self.unmated)[::-1][place])
        return float(np.mean((self.mate > threshold) & (self.mate > self.other)))


def average_precisions(
    query: Floats | NormalizedRows, query_labels: Ints, gallery: Floats, gallery_labels: Ints
) -> Floats:
    """Return each query's average precision, in (0, 1], over the ranking of all gallery images.

    The average precision is the mean, over the query's mates, of the share of mates among the
    images down to that mate. An image of another class that scores exactly as high as a mate
    counts as better, so the order of the gallery does not matter. ``query`` is (queries, dim) and
    ``gallery`` (images, dim), both normalised; each query has a mate, and none is in the gallery.
    """
    precisions = np.empty(len(query))
    block = max(1, _RANKING_SCORES_AT_ONCE // len(gallery))
    for start in range(0, len(query), block):
        part = slice(start, start + block)
        scores, mates = lowered_scores(query[part], query_labels[part], gallery, gallery_labels)
        precisions[part] = block_precisions(scores, *mates)
    return precisions


def block_precisions(scores: Floats, rows: Ints, columns: Ints) -> Floats:
    """Return the average precision of each row of (queries, images) scores, which are overwritten.

    ``rows`` and ``columns`` are (mates,): the place of each mate, its row ascending.
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
