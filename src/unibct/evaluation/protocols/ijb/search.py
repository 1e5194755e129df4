"""1:N identification in several galleries, as a closed and as an open set."""

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from unibct.evaluation.metrics.identification import mate_ranks
from unibct.evaluation.metrics.open_set import OpenSearch
from unibct.evaluation.score_table import mate_places

_SCORES_AT_ONCE = 1 << 21


class GallerySearch(NamedTuple):
    """The outcome of a search in several galleries.

    Attributes:
        ranks: (probes,) entries of other subjects that score at least as high as the mate, in the
            merged galleries.
        open_searches: the open-set search in each gallery, by its name.
    """

    ranks: Ints
    open_searches: dict[str, OpenSearch]


def search_galleries(
    query: Any, query_subjects: Any, galleries: dict[str, tuple[Any, Any]]
) -> GallerySearch:
    """Search each probe's vector in every gallery.

    Args:
        query: (probes, dim).
        query_subjects: (probes,); each has a mate in one of the galleries.
        galleries: name -> (templates, dim) vectors and (templates,) subjects.
    """
    query = normalized(checked_embeddings(query, "query")).astype(np.float32)
    query_subjects = checked_labels(query_subjects, len(query), "query_subjects")
    parts = [checked_embeddings(vectors, name) for name, (vectors, _) in galleries.items()]
    for name, array in zip(galleries, parts, strict=True):
        require_same_dim(query, "query", array, name)
    merged = normalized(np.concatenate(parts)).astype(np.float32)
    subjects = np.concatenate(
        [
            checked_labels(labels, len(array), f"subjects of {name}")
            for (name, (_, labels)), array in zip(galleries.items(), parts, strict=True)
        ]
    )
    _require_mates(query_subjects, subjects)
    ends = np.cumsum([len(array) for array in parts])
    slices = [slice(end - len(array), end) for array, end in zip(parts, ends, strict=True)]
    ranks: list[Ints] = []
    best_scores: list[Floats] = []
    block = max(1, _SCORES_AT_ONCE // len(merged))
    for start in range(0, len(query), block):
        scores = query[start : start + block] @ merged.T
        block_subjects = query_subjects[start : start + block]
        mates = mate_places(block_subjects, subjects)
        scores[mates] = lowered(scores[mates])
        ranks.append(mate_ranks(scores, block_subjects, subjects))
        best_scores.append(_best_scores(scores, mates, slices))
    mate, other = np.concatenate(best_scores, axis=2)
    open_searches = {
        name: OpenSearch(
            mate[i][mated],
            other[i][mated],
            other[i][~mated],
            query_subjects[mated],
            query_subjects[~mated],
        )
        for i, name in enumerate(galleries)
        for mated in [np.isfinite(mate[i])]
    }
    return GallerySearch(np.concatenate(ranks), open_searches)


def _require_mates(query_subjects: Ints, gallery_subjects: Ints) -> None:
    without_mate = ~np.isin(query_subjects, gallery_subjects)
    if without_mate.any():
        row = int(without_mate.argmax())
        raise UserError(
            f"probe row {row} has the subject {int(query_subjects[row])}, which no gallery has; "
            "the closed set needs a mate for each probe"
        )


def _best_scores(scores: Floats, mates: tuple[Ints, Ints], slices: Sequence[slice]) -> Floats:
    """Return the scores of the best mate and of the best other, in each gallery.

    Args:
        scores: (probes, entries) in the merged galleries.
        mates: the probe and the entry of each pair of the same subject.
        slices: the entries of each gallery.

    Returns:
        (2, galleries, probes), -inf if there is none.
    """
    best = np.full((2, len(slices), len(scores)), -np.inf, dtype=np.float32)
    probes, entries = mates
    mate_scores = scores[mates]
    others = scores.copy()
    others[mates] = -np.inf
    for number, gallery in enumerate(slices):
        inside = (entries >= gallery.start) & (entries < gallery.stop)
        np.maximum.at(best[0, number], probes[inside], mate_scores[inside])
        best[1, number] = others[:, gallery].max(axis=1)
    return best
