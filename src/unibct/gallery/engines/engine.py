"""What an engine does: the small interface behind every gallery.

Rows of one **kind** were made by one model or map. Each kind has its own dimension and is kept
apart (a table or a collection of its own), so that every engine can index it. A row whose id has
been written in a newer kind is **superseded**: it stays, marked with the number of the step that
replaced it, so that this step can be undone. A row that is not superseded is **live**.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unibct.gallery.rows import GalleryRows, Metadata, Where


@dataclass(frozen=True)
class Found:
    """A row that a search has found.

    Attributes:
        id: of the row.
        label: of the row.
        metadata: of the row.
        similarity: the cosine of query and row.
    """

    id: str
    label: str | None
    metadata: Metadata
    similarity: float


@dataclass(frozen=True)
class Search:
    """What is asked of an engine.

    Attributes:
        k: how many rows per query.
        where: a filter on the metadata; empty for none.
        approximate: use the index of the kind, if it has one.
        with_superseded: search superseded rows too.
    """

    k: int
    where: Where
    approximate: bool = False
    with_superseded: bool = False


@dataclass(frozen=True)
class Count:
    """How many rows a kind has.

    Attributes:
        rows: all of them.
        live: those that are not superseded.
    """

    rows: int
    live: int


class Engine(Protocol):
    """Keeps rows, and finds those nearest to queries.

    What a method has written is durable when it returns. ``write``, ``supersede``, ``undo`` and
    ``delete`` may be repeated after a kill, with the same result as once. A method that cannot
    reach its database raises a ``UserError`` that names the place.
    """

    def create(self) -> None:
        """Make the place for rows; refuse one that has rows already."""
        ...

    def destroy(self) -> None:
        """Remove everything that belongs to this gallery, and nothing else."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...

    def kinds(self) -> dict[str, int]:
        """Return kind -> dimension."""
        ...

    def add_kind(self, kind: str, dim: int) -> None:
        """Make a place for a kind of rows; does nothing if it is there."""
        ...

    def drop_kind(self, kind: str) -> None:
        """Remove a kind with all of its rows; does nothing if it is not there."""
        ...

    def write(self, kind: str, rows: GalleryRows, *, supersedes: Sequence[str] = ()) -> None:
        """Add rows, or replace those with the same id in this kind.

        Args:
            kind: of the rows.
            rows: at most a few thousand.
            supersedes: other kinds, in which the live rows with these ids are marked with this
                step. A search sees either state of a row or both, never none.
        """
        ...

    def supersede(self, kind: str, ids: Sequence[str], step: int) -> None:
        """Mark live rows of a kind as superseded by a step."""
        ...

    def undo(self, step: int) -> None:
        """Delete the rows that a step wrote, in every kind, and remove its marks from others."""
        ...

    def delete(self, kind: str, ids: Sequence[str]) -> None:
        """Delete rows for good."""
        ...

    def delete_superseded(self, kind: str) -> int:
        """Delete all superseded rows of a kind for good, and return how many they were."""
        ...

    def read(self, kind: str, ids: Sequence[str], *, vectors: bool = True) -> GalleryRows:
        """Return the rows with these ids that are there, live or not, in the order of ``ids``."""
        ...

    def scan(self, kind: str, *, batch: int = 4096, vectors: bool = True) -> Iterator[GalleryRows]:
        """Yield all rows of a kind, live or not, in ascending order of ids."""
        ...

    def count(self, kind: str) -> Count:
        """Count the rows of a kind."""
        ...

    def has_live(self, kind: str) -> bool:
        """Return whether a kind has a live row; cheap however many there are."""
        ...

    def search(self, kind: str, queries: NDArray[np.float32], search: Search) -> list[list[Found]]:
        """Return the nearest rows of a kind for each query, by falling similarity.

        Rows of equal similarity are in ascending order of their ids, as far as all of them fit
        into ``k``.
        """
        ...

    def build_index(self, kind: str) -> None:
        """Build the approximate index of a kind, or build it again."""
        ...

    def has_index(self, kind: str) -> bool:
        """Return whether a kind has an index for approximate search."""
        ...

    def problems(self) -> list[str]:
        """Return what the database finds wrong with its files and indexes, one line each."""
        ...
