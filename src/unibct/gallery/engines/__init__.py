"""Where rows are kept and searched: one file for each database, listed in ``ENGINES``.

An engine knows rows, kinds and marks. Which model may search what is decided outside.

Rows of one **kind** were made by one model or map. Each kind has its own dimension and is kept
apart (a table or a collection of its own), so that every engine can index it. A row whose id has
been written in a newer kind is **superseded**: it stays, marked with the number of the step that
replaced it, so that this step can be undone. A row that is not superseded is **live**.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.rows import GalleryRows, Metadata, Where
from unibct.registry import Registry


@dataclass(frozen=True)
class Found:
    """A row that a search has found."""

    id: str  # of the row
    label: str | None  # of the row
    metadata: Metadata  # of the row
    similarity: float  # the cosine of query and row


@dataclass(frozen=True)
class Search:
    """What is asked of an engine."""

    k: int  # how many rows per query
    where: Where  # a filter on the metadata; empty for none
    approximate: bool = False  # use the index of the kind, if it has one
    with_superseded: bool = False  # search superseded rows too


@dataclass(frozen=True)
class Count:
    """How many rows a kind has."""

    rows: int  # all of them
    live: int  # those that are not superseded


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
        """Add rows (at most a few thousand), or replace those with the same id in this kind.

        In the kinds of ``supersedes``, the live rows with these ids are marked with this step. A
        search sees either state of a row or both, never none.
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


@dataclass(frozen=True)
class Place:
    """Where an engine keeps the rows of one gallery, and the names that belong to it there.

    A database may hold many galleries and tables of others, so every name begins with ``unibct_``
    and the name of the gallery.
    """

    folder: Path  # the gallery's folder; the embedded engine keeps its files there
    name: str  # tells this gallery from others in the same database: letters, digits and `_`
    address: str = ""  # of the server, without a password; empty for the embedded engine

    @property
    def stem(self) -> str:
        """How every name of this gallery begins."""
        name = self.name
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME - 13]}_{_digest(name)}"
        return f"unibct_{name}_"

    @property
    def registry(self) -> str:
        """The name of what shows that the gallery is in this database."""
        return f"{self.stem}kinds"

    def table(self, kind: str) -> str:
        """Return the name of the table or collection with the rows of a kind."""
        return f"{self.stem}{_digest(kind)}"

    def refuse_rows(self, engine: Engine) -> None:
        """Refuse to begin a gallery where one of this name has rows."""
        if any(engine.count(kind).rows for kind in engine.kinds()):
            raise UserError(
                f"{self.address} has rows of a gallery {self.name} already; "
                "choose another name or database"
            )


_LONGEST_NAME = 30  # of a gallery within a longer name; PostgreSQL has room for 63 bytes in all


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def refuse_secret(address: str, secret: str | None, instead: str) -> None:
    """Refuse an address with a password: it would be kept in files and shown in messages.

    ``instead`` says where it belongs.
    """
    if secret:
        shown = address.replace(secret, "***")
        raise UserError(f"{shown} contains a password; leave it out and {instead}")


def secret_of_url(address: str) -> str | None:
    """Return what stands before the ``@`` of a URL such as ``http://user:password@host``."""
    before, at, _ = urlsplit(address).netloc.rpartition("@")
    return before if at else None


def in_order(hit_lists: Iterable[list[Found]]) -> list[list[Found]]:
    """Return hits by falling similarity, equal ones by rising ids."""
    return [sorted(hits, key=lambda hit: (-hit.similarity, hit.id)) for hits in hit_lists]


@dataclass(frozen=True)
class EngineEntry:
    """An engine in ``ENGINES``; its module is imported when it is used."""

    code: str  # "module:class"; the class is made from a place, and writes nothing before `create`
    description: str  # one line for help texts
    address: str = ""  # what the address of its server looks like; empty if it has none


EMBEDDED = "embedded"

ENGINES = Registry(
    "engine",
    {
        EMBEDDED: EngineEntry(
            "unibct.gallery.engines.embedded:EmbeddedEngine",
            "SQLite and faiss in the gallery's folder; up to a few million rows",
        ),
        "milvus": EngineEntry(
            "unibct.gallery.engines.milvus:MilvusEngine",
            "a Milvus server or cluster",
            "http://HOST:19530",
        ),
        "postgresql": EngineEntry(
            "unibct.gallery.engines.postgresql:PostgresqlEngine",
            "PostgreSQL with the pgvector extension",
            "postgresql://USER@HOST/DATABASE",
        ),
    },
)


def open_engine(name: str, place: Place) -> Engine:
    """Open an engine by its name in ``ENGINES``."""
    entry = ENGINES.find(name)
    if entry.address and not place.address:
        raise UserError(f"the engine {name} needs an address (at), such as {entry.address}")
    if place.address and not entry.address:
        raise UserError(
            f"the engine {name} takes no address (at): its rows are in the gallery's folder"
        )
    module, _, attribute = entry.code.partition(":")
    return getattr(import_module(module), attribute)(place)
