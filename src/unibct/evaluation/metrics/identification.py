"""1:N identification in a closed set: every query has a mate in the gallery."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from unibct.arrays import (
    Floats,
    Ints,
    checked_embeddings,
    checked_labels,
    lowered,
    normalized,
    require_same_dim,
)
from unibct.errors import UserError
from unibct.evaluation.score_table import mate_places

_SCORES_AT_ONCE = 16_000_000


def identification(
    query: Any,
    query_labels: Any,
    gallery: Any,
    gallery_labels: Any,
    *,
    ks: Iterable[int] = (1, 5),
) -> dict[int, float]:
    """Return the share of queries that find an entry of their own class among the k best.

    Closed set: the gallery must contain each query's class. An entry of another class that scores
    exactly as high as the mate counts as better, so the order of the gallery does not matter.

    Args:
        query: (queries, dim).
        query_labels: (queries,) integers.
        gallery: (entries, dim).
        gallery_labels: (entries,) integers.
        ks: how many of the best entries count, such as 1 and 5.

    Returns:
        k -> accuracy.
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
        scores = query[part] @ gallery.T
        mates = mate_places(query_labels[part], gallery_labels)
        scores[mates] = lowered(scores[mates])
        ranks[part] = mate_ranks(scores, query_labels[part], gallery_labels)
    return {k: float(np.mean(ranks < k)) for k in ks}


def mate_ranks(scores: Floats, query_labels: Ints, gallery_labels: Ints) -> Ints:
    """Count the entries of other classes that score at least as high as each query's best mate.

    Args:
        scores: (queries, entries).
        query_labels: (queries,).
        gallery_labels: (entries,), with at least one mate for each query.

    Returns:
        (queries,): 0 means that the mate is found first.
    """
    mates = query_labels[:, None] == gallery_labels[None, :]
    best_mate = np.where(mates, scores, -np.inf).max(axis=1)
    return ((scores >= best_mate[:, None]) & ~mates).sum(axis=1)
