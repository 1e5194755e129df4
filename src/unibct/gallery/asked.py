"""How often queries have found each row: the rows that a backfill should take first."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from unibct.gallery.engines.sqlite_file import SqliteFile

ASKED_FILE = "asked.sqlite"


def remember_asked(folder: Path, ids: Iterable[str]) -> None:
    """Count rows that a search has found. Losing a count does no harm, so nothing is synced."""
    _add_counts(folder, Counter(ids))


def copy_asked(source: Path, target: Path) -> None:
    """Copy the counts of a gallery's folder to another one."""
    _add_counts(target, asked_counts(source))


def _add_counts(folder: Path, counts: Mapping[str, int]) -> None:
    if not counts:
        return
    file = SqliteFile(folder / ASKED_FILE)
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


def asked_counts(folder: Path) -> dict[str, int]:
    """Return id -> how often it was found."""
    if not (folder / ASKED_FILE).is_file():
        return {}
    file = SqliteFile(folder / ASKED_FILE)
    try:
        with file.session() as database:
            return dict(database.execute("SELECT id, count FROM asked"))
    finally:
        file.close()
