"""The table of engines.

To add an engine, write a module with a function ``open_engine``, and add a line to ``ENGINES``.
The modules are imported when they are used.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from unibct.errors import UserError
from unibct.gallery.engines.engine import Engine


@dataclass(frozen=True)
class Place:
    """Where an engine keeps the rows of one gallery.

    Attributes:
        folder: the gallery's folder; the embedded engine keeps its files there.
        name: tells this gallery from others in the same database: letters, digits and ``_``.
        address: of the server; empty for the embedded engine. It contains no password.
    """

    folder: Path
    name: str
    address: str = ""


class EngineModule(Protocol):
    """What the module of an engine contains."""

    def open_engine(self, place: Place) -> Engine:
        """Return the engine; nothing is written before ``create``."""
        ...


@dataclass(frozen=True)
class EngineEntry:
    """An engine.

    Attributes:
        module: the name of its module in this package.
        description: one line for help texts.
        address: what ``--at`` looks like; empty if nothing needs to be started.
    """

    module: str
    description: str
    address: str = ""

    def load(self) -> EngineModule:
        """Import the module of this engine."""
        return cast(EngineModule, import_module(f"unibct.gallery.engines.{self.module}"))


EMBEDDED = "embedded"

ENGINES: dict[str, EngineEntry] = {
    EMBEDDED: EngineEntry(
        "embedded", "SQLite and faiss in the gallery's folder; up to a few million rows"
    ),
    "milvus": EngineEntry("milvus", "a Milvus server or cluster", "http://HOST:19530"),
    "postgresql": EngineEntry(
        "postgresql", "PostgreSQL with the pgvector extension", "postgresql://USER@HOST/DATABASE"
    ),
}


def open_engine(name: str, place: Place) -> Engine:
    """Open an engine by its name in ``ENGINES``."""
    if name not in ENGINES:
        raise UserError(f"unknown engine {name!r}; choose one of {', '.join(ENGINES)}")
    entry = ENGINES[name]
    if entry.address and not place.address:
        raise UserError(f"the engine {name} needs --at, such as {entry.address}")
    if place.address and not entry.address:
        raise UserError(f"the engine {name} takes no --at: its rows are in the gallery's folder")
    return entry.load().open_engine(place)
