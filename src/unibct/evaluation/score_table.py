"""The scores of all queries with all entries of a gallery, computed block by block in every pass.

At 100,000 queries and 10,000 entries the scores alone would need 4 GB. They are not kept: what
needs them goes through the blocks, and the matrix product is taken again. The blocks always have
the same edges, so that a score has the same digits in every pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, lowered, normalized

Groups: TypeAlias = NDArray[np.integer[Any]]

_SCORES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class NormalizedRows:
    """Chosen rows of embeddings, scaled to length 1 in single precision when they are read."""

    embeddings: Floats  # (images, dim); may be a memory map
    rows: Ints  # which of them

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def __getitem__(self, part: slice) -> Floats:
        """Return (rows, dim)."""
        return normalized(self.embeddings[self.rows[part]]).astype(np.float32, copy=False)


@dataclass(frozen=True)
class ProductScores:
    """(queries, entries) scores: the matrix product is taken where they are read."""

    query: NormalizedRows  # (queries, dim)
    gallery: Floats  # (entries, dim) normalised

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, entries)."""
        return len(self.query), len(self.gallery)

    def __len__(self) -> int:
        """How many queries there are."""
        return len(self.query)

    def __getitem__(self, rows: int | slice) -> Floats:
        """Return a query's scores, or the scores of a block that ``ScoreTable`` asks for."""
        if isinstance(rows, slice):
            return self.query[rows] @ self.gallery.T
        if not 0 <= rows < len(self):
            raise IndexError(rows)
        step = _rows_at_once(len(self.gallery))
        start = rows - rows % step
        return self[start : start + step][rows - start]


Scores: TypeAlias = Floats | ProductScores


class ScoreBlock(NamedTuple):
    """Some queries' scores, taken apart into mates and others."""

    queries: Ints  # (queries,) their rows in the table
    classes: Groups  # (queries,) the class of each query
    others: Floats  # (queries, entries) with -inf in the place of mates
    mates: Floats  # (mates,) query by query; those of a product are lowered, see ``lowered``
    mate_rows: Ints  # (mates,) the query of each, counted within the block
    mate_entries: Ints  # (mates,) the entry of each


@dataclass(frozen=True)
class ScoreTable:
    """Scores with the classes of both sides. The caller must not change them."""

    scores: Scores  # (queries, entries)
    query_classes: Groups  # (queries,) the class of each query
    # (entries,) the class of each entry; None if no entry is a mate, as for a list of impostor
    # pairs, which is a table with one entry
    entry_classes: Groups | None = None

    def blocks(self) -> Iterator[ScoreBlock]:
        """Yield all scores, some queries at a time."""
        queries, entries = self.scores.shape
        step = _rows_at_once(entries)
        for start in range(0, queries, step):
            rows = slice(start, start + step)
            others = self.scores[rows]
            mate_rows, mate_entries = self._mates(rows)
            mates = others[mate_rows, mate_entries]
            if isinstance(self.scores, np.ndarray):
                others = others.copy()
            else:
                mates = lowered(mates)
            others[mate_rows, mate_entries] = -np.inf
            yield ScoreBlock(
                np.arange(start, start + len(others)),
                self.query_classes[rows],
                others,
                mates,
                mate_rows,
                mate_entries,
            )

    def impostor_counts(self) -> Ints:
        """Return (queries,): how many entries are no mates of each query."""
        queries, entries = self.scores.shape
        mates = np.bincount(self._mates(slice(None))[0], minlength=queries)
        return entries - mates

    def _mates(self, rows: slice) -> tuple[Ints, Ints]:
        if self.entry_classes is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return mate_places(self.query_classes[rows], self.entry_classes)


def mate_places(query_classes: Groups, entry_classes: Groups) -> tuple[Ints, Ints]:
    """Return the query and the entry of each pair of the same class, query by query."""
    order = np.argsort(entry_classes, kind="stable")
    ordered = entry_classes[order]
    first = np.searchsorted(ordered, query_classes, side="left")
    count = np.searchsorted(ordered, query_classes, side="right") - first
    queries = np.repeat(np.arange(len(query_classes)), count)
    place = np.arange(len(queries)) - np.repeat(np.cumsum(count) - count, count)
    return queries, order[np.repeat(first, count) + place]


def lowered_scores(
    query: Floats, query_classes: Groups, gallery: Floats, entry_classes: Groups
) -> tuple[Floats, tuple[Ints, Ints]]:
    """Return (queries, entries) scores in which mates are lowered, and the places of the mates."""
    scores = query @ gallery.T
    mates = mate_places(query_classes, entry_classes)
    scores[mates] = lowered(scores[mates])
    return scores, mates


def _rows_at_once(entries: int) -> int:
    return max(1, _SCORES_AT_ONCE // entries)
