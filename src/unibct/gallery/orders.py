"""Which rows are embedded again first. The table is readable without torch."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import normalized
from unibct.errors import UserError
from unibct.gallery.engines.embedded import SqliteFile

if TYPE_CHECKING:
    from unibct.gallery.gallery_folder import GalleryFolder


RANDOM, FARTHEST, MOST_FOUND = "random", "farthest", "asked"


def ordered_rows(folder: "GalleryFolder", kinds: list[str], order: str, seed: int) -> list[str]:
    """Return the ids of the live rows of some kinds, those to be embedded again first.

    The order is a name from ``ORDERS``; the seed is that of the random order, which also decides
    between equal rows.
    """
    if order not in ORDERS:
        raise UserError(f"unknown order {order!r}; choose one of {', '.join(ORDERS)}")
    keys = ORDERS[order].keys(folder, kinds)
    return sorted(keys, key=lambda row_id: (keys[row_id], _random_key(row_id, seed), row_id))


def _random(folder: "GalleryFolder", kinds: list[str]) -> Mapping[str, float]:
    return dict.fromkeys(_live_ids(folder, kinds), 0.0)


def _asked(folder: "GalleryFolder", kinds: list[str]) -> Mapping[str, float]:
    """Rows that real queries have found most often come first."""
    counts = found_counts(folder.path)
    return {row_id: -float(counts.get(row_id, 0)) for row_id in _live_ids(folder, kinds)}


def _farthest(folder: "GalleryFolder", kinds: list[str]) -> Mapping[str, float]:
    """Rows that are farthest from the mean of their label come first; those without one last."""
    similarity: dict[str, float] = {}
    for kind in kinds:
        sums: dict[str, NDArray[np.float32]] = {}
        for rows in folder.engine.scan(kind):
            for place, label in enumerate(rows.labels):
                if label is not None and not rows.superseded[place]:
                    vector = rows.vectors[place]
                    sums[label] = sums[label] + vector if label in sums else vector.copy()
        means = {label: normalized(total[None])[0] for label, total in sums.items()}
        for rows in folder.engine.scan(kind):
            for place, label in enumerate(rows.labels):
                if not rows.superseded[place]:
                    mean = None if label is None else means[label]
                    value = 1.0 if mean is None else float(rows.vectors[place] @ mean)
                    similarity[rows.ids[place]] = value
    return similarity


def _live_ids(folder: "GalleryFolder", kinds: list[str]) -> list[str]:
    return [
        row_id
        for kind in kinds
        for rows in folder.engine.scan(kind, vectors=False)
        for row_id, mark in zip(rows.ids, rows.superseded, strict=True)
        if not mark
    ]


def _random_key(row_id: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {row_id}".encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Order:
    """An order of rows."""

    # returns a number for the id of each live row of some kinds; the smallest comes first
    keys: "Callable[[GalleryFolder, list[str]], Mapping[str, float]]"
    meaning: str  # a few words for help texts and tables


ORDERS: dict[str, Order] = {
    RANDOM: Order(_random, "in random order"),
    FARTHEST: Order(_farthest, "farthest from the class mean first"),
    MOST_FOUND: Order(_asked, "most often found first"),
}


# How often queries have found each row: the rows that a backfill should take first.

FOUND_FILE = "asked.sqlite"


def count_found(folder: Path, ids: Iterable[str]) -> None:
    """Count rows that a search has found. Losing a count does no harm, so nothing is synced."""
    _add_counts(folder, Counter(ids))


def copy_found_counts(source: Path, target: Path) -> None:
    """Copy the counts of a gallery's folder to another one."""
    _add_counts(target, found_counts(source))


def _add_counts(folder: Path, counts: Mapping[str, int]) -> None:
    if not counts:
        return
    file = SqliteFile(folder / FOUND_FILE)
    try:
        with file.session(create=True) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute(
                "CREATE TABLE IF NOT EXISTS asked (id TEXT PRIMARY KEY, count INTEGER)"
            )
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT INTO asked VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET "
                "count = count + excluded.count",
                counts.items(),
            )
            database.execute("COMMIT")
    finally:
        file.close()


def found_counts(folder: Path) -> dict[str, int]:
    """Return id -> how often it was found."""
    if not (folder / FOUND_FILE).is_file():
        return {}
    file = SqliteFile(folder / FOUND_FILE)
    try:
        with file.session() as database:
            return dict(database.execute("SELECT id, count FROM asked"))
    finally:
        file.close()
