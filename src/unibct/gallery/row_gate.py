"""The gate for single rows that come or go: known queries are asked only if these can matter.

A row that a query ranks below the query's own row decides nothing. If the own row is among the
first rows, it stays there; if it is not, the other one is not either. So the vectors of a few
rows say whether a step can change what a query finds by exact search, and a small step does not
need a search through all rows. Each calibration is strictly monotone, so this also holds if the
step brings the first row of a kind, or takes the last one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.gate import Passage, ask, asked_queries, known_queries
from unibct.gallery.queries import Queries, query_vectors
from unibct.gallery.row_types import searchable_kinds
from unibct.gallery.rows import NO_STEP, GalleryRows
from unibct.gallery.score_scales import scale_for
from unibct.gallery.search_request import SearchRequest

_ROUNDING = 1e-4  # more than similarities of two engines differ by


@dataclass(frozen=True)
class _QueryRows:
    """The rows of known queries that are of one kind.

    Attributes:
        kind: of the rows.
        places: of their queries.
        similarities: of each query and its row.
    """

    kind: str
    places: NDArray[np.int64]
    similarities: NDArray[np.float32]


class RowGate:
    """Asks the known queries before and after a step that adds or removes rows, if need be."""

    def __init__(self, folder: GalleryFolder) -> None:
        """Look up what is known; needs the lock.

        Args:
            folder: the gallery, before the step.
        """
        self._folder = folder
        self._before: Passage | None = None
        self._ids = {query.id for query in known_queries(folder.path)}
        asked, self._queries = asked_queries(folder)
        self._is_certain = all(query.has_row for query in asked)
        self._query_rows = [] if self._queries is None else self._read(self._queries)

    def expect(self, kind: str, rows: GalleryRows) -> None:
        """Ask the known queries now, if rows that are about to come or go can matter to them."""
        if self._before is None and self._can_matter(kind, rows):
            self._before = ask(self._folder)

    def refusal(self, step: str) -> UserError | None:
        """Return why the step must be undone; None if almost all queries still find their mates.

        None as well if no query was asked: there is none, or the rows cannot matter to any.

        Args:
            step: what it is called.
        """
        if self._before is None:
            return None
        after = ask(self._folder)
        return None if self._before.allows(after) else self._before.refusal(after, step)

    def _can_matter(self, kind: str, rows: GalleryRows) -> bool:
        """Return whether any known query may rank one of these rows as high as its own row."""
        live = rows.take(np.flatnonzero(rows.superseded == NO_STEP))
        if not len(live) or not self._folder.state.searchable(kind):
            return False
        if not self._is_certain or not self._ids.isdisjoint(live.ids):
            return True
        if self._queries is None:
            return False
        state = self._folder.state
        filled = filter(self._folder.has_live, searchable_kinds(state, state.standing))
        kinds = [*dict.fromkeys((*filled, kind))]
        similarities = self._vectors(self._queries, kind) @ live.vectors.T
        highest = self._ranks(kind, kinds, similarities.max(axis=1) + _ROUNDING)
        return any(
            (
                highest[known.places]
                >= self._ranks(known.kind, kinds, known.similarities - _ROUNDING)
            ).any()
            for known in self._query_rows
        )

    def _read(self, queries: Queries) -> list[_QueryRows]:
        """Return the live rows of the known queries."""
        state = self._folder.state
        position = {row_id: place for place, row_id in enumerate(queries.ids)}
        result: list[_QueryRows] = []
        for kind in searchable_kinds(state, state.standing):
            rows = self._folder.engine.read(kind, queries.ids)
            rows = rows.take(np.flatnonzero(rows.superseded == NO_STEP))
            if len(rows):
                places = np.array([position[row_id] for row_id in rows.ids], dtype=np.int64)
                vectors = self._vectors(queries, kind)[places]
                similarities = np.einsum("ij,ij->i", vectors, rows.vectors)
                result.append(_QueryRows(kind, places, similarities))
        return result

    def _vectors(self, queries: Queries, kind: str) -> NDArray[np.float32]:
        state = self._folder.state
        maker, request = state.makers[kind], SearchRequest()
        return query_vectors(self._folder, state.standing, maker, queries, request)

    def _ranks(
        self, kind: str, kinds: Sequence[str], similarities: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return similarities on the scale of a ranking of these kinds."""
        state = self._folder.state
        scale = scale_for(self._folder, state.standing, state.makers[kind], SearchRequest(), kinds)
        return scale.rank(similarities)
