"""A SQLite file that several threads share, with transactions and one-line errors."""

import json
import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.engines import Count, Found, Place, Search, in_order
from unibct.gallery.engines.memory_index import (
    Changes,
    MemoryIndex,
    graph_problems,
    remove_graph,
    saved_graph,
)
from unibct.gallery.rows import GalleryRows, Scalar, Where, recorded_rows

_BUSY_SECONDS = 30

_Identity: TypeAlias = tuple[int, int]


class SqliteFile:
    """One connection to a SQLite file, opened when it is first used.

    It writes with a write-ahead log and ``synchronous=FULL``: what was committed survives a kill
    and a power cut.
    """

    def __init__(self, path: Path) -> None:
        self.path = path  # of the file
        self.lock = threading.RLock()  # held while the connection is used
        self._connection: sqlite3.Connection | None = None
        self._files: list[_Identity | None] = []  # those that were opened

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Yield the database; all that the block does lands, or nothing."""
        with self.session() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:  # SQLite itself goes back if the disk is full
                    database.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Generator[sqlite3.Connection]:
        """Yield the database as it is now: what others write meanwhile is not seen."""
        with self.session() as database:
            database.execute("BEGIN")
            try:
                yield database
            finally:
                if database.in_transaction:
                    database.execute("COMMIT")

    @contextmanager
    def session(self, *, create: bool = False) -> Generator[sqlite3.Connection]:
        """Yield the open database; errors of SQLite become one line that names the file."""
        with self.lock:
            try:
                yield self._opened(create=create)
            except sqlite3.Error as error:
                hint = "; another process writes to it" if "locked" in str(error) else ""
                raise UserError(f"{self.path}: {error}{hint}") from error

    def _opened(self, *, create: bool) -> sqlite3.Connection:
        """Return the connection; one to a file that is not there any more would still answer."""
        files = self._files_now()
        if files[0] is None and not create:
            raise UserError(f"{self.path} is not there: the rows of this gallery are missing")
        if self._connection is None:
            database = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("SELECT count(*) FROM sqlite_master")  # opens the log, too
            self._connection, self._files = database, self._files_now()
        elif files != self._files:
            raise UserError(
                f"{self.path} was deleted or replaced while it was open: open the gallery again "
                "(end a server, and start it again)"
            )
        return self._connection

    def _files_now(self) -> list[_Identity | None]:
        """Return what tells the file and its log from others of the same names."""
        return [
            _identity(path) for path in (self.path, self.path.with_name(f"{self.path.name}-wal"))
        ]


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# The embedded engine: SQLite keeps the rows, faiss searches their vectors in memory.
#
# SQLite runs with a write-ahead log and ``synchronous=FULL``, so that a row that was acknowledged
# survives a kill and a power cut, several processes may read while one writes, and ids are unique.
# The database file is the only truth: vectors in memory and index files are made from it.

DATABASE_FILE = "rows.sqlite"
_IDS_PER_QUERY = 500
_TABLES = """
CREATE TABLE IF NOT EXISTS kinds (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL UNIQUE, dim INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS clock (change INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS rows (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind INTEGER NOT NULL REFERENCES kinds (number),
    id TEXT NOT NULL, label TEXT, metadata TEXT NOT NULL, vector BLOB NOT NULL,
    step INTEGER NOT NULL, superseded INTEGER NOT NULL, digest TEXT NOT NULL,
    change INTEGER NOT NULL,
    UNIQUE (kind, id));
CREATE INDEX IF NOT EXISTS rows_by_change ON rows (kind, change);
CREATE INDEX IF NOT EXISTS rows_by_step ON rows (step);
CREATE INDEX IF NOT EXISTS rows_by_mark ON rows (kind, superseded);
CREATE TABLE IF NOT EXISTS deleted (kind INTEGER NOT NULL, row INTEGER NOT NULL,
    change INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS deleted_by_change ON deleted (kind, change);
"""
_COLUMNS = "id, label, metadata, step, superseded, digest"


class EmbeddedEngine:
    """An engine within this process, see ``Engine``; several threads may use it."""

    def __init__(self, place: Place) -> None:
        self._file = SqliteFile(place.folder / DATABASE_FILE)
        self._indexes: dict[tuple[int, bool], MemoryIndex] = {}

    def create(self) -> None:
        """Make the database file."""
        if self._file.path.exists():
            raise UserError(f"{self._file.path} exists already")
        self._file.path.parent.mkdir(parents=True, exist_ok=True)
        with self._file.session(create=True) as database:
            database.executescript(_TABLES)
            database.execute("INSERT INTO clock VALUES (0)")

    def destroy(self) -> None:
        """Remove the database and index files."""
        self.close()
        for pattern in (f"{DATABASE_FILE}*", "index-*"):
            for path in self._file.path.parent.glob(pattern):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the database file."""
        with self._file.lock:
            self._indexes.clear()
            self._file.close()

    def kinds(self) -> dict[str, int]:
        """Return kind -> dimension."""
        with self._file.session() as database:
            return dict(database.execute("SELECT kind, dim FROM kinds ORDER BY number"))

    def add_kind(self, kind: str, dim: int) -> None:
        """Make a place for a kind of rows."""
        with self._file.transaction() as database:
            database.execute("INSERT OR IGNORE INTO kinds (kind, dim) VALUES (?, ?)", (kind, dim))

    def drop_kind(self, kind: str) -> None:
        """Remove a kind with all of its rows."""
        if kind not in self.kinds():
            return
        with self._file.transaction() as database:
            number = _kind(database, kind)[0]
            database.execute("DELETE FROM rows WHERE kind = ?", (number,))
            database.execute("DELETE FROM deleted WHERE kind = ?", (number,))
            database.execute("DELETE FROM kinds WHERE number = ?", (number,))
        self._indexes = {key: index for key, index in self._indexes.items() if key[0] != number}
        remove_graph(self._index_file(number))

    def write(self, kind: str, rows: GalleryRows, *, supersedes: Sequence[str] = ()) -> None:
        """Add or replace rows, and mark those of other kinds, in one transaction."""
        with self._file.transaction() as database:
            number, change = _kind(database, kind)[0], _next_change(database)
            database.executemany(
                "INSERT INTO rows (kind, id, label, metadata, vector, step, superseded, digest, "
                "change) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (kind, id) DO UPDATE SET "
                "label = excluded.label, metadata = excluded.metadata, vector = excluded.vector, "
                "step = excluded.step, superseded = excluded.superseded, "
                "digest = excluded.digest, change = excluded.change",
                (
                    (
                        number,
                        rows.ids[place],
                        rows.labels[place],
                        json.dumps(rows.metadata[place], ensure_ascii=False, sort_keys=True),
                        np.asarray(rows.vectors[place], dtype="<f4").tobytes(),
                        int(rows.steps[place]),
                        int(rows.superseded[place]),
                        rows.digests[place],
                        change,
                    )
                    for place in range(len(rows))
                ),
            )
            for other in supersedes:
                marks = zip(rows.steps.tolist(), rows.ids, strict=True)
                _mark(database, _kind(database, other)[0], marks, change)

    def supersede(self, kind: str, ids: Sequence[str], step: int) -> None:
        """Mark live rows as superseded by a step."""
        with self._file.transaction() as database:
            change = _next_change(database)
            marks = ((step, row_id) for row_id in ids)
            _mark(database, _kind(database, kind)[0], marks, change)

    def undo(self, step: int) -> None:
        """Delete the rows of a step and remove its marks, in one transaction."""
        with self._file.transaction() as database:
            change = _next_change(database)
            _delete(database, "step = ?", (step,), change)
            database.execute(
                "UPDATE rows SET superseded = 0, change = ? "
                "WHERE kind IN (SELECT number FROM kinds) AND superseded = ?",
                (change, step),
            )

    def delete(self, kind: str, ids: Sequence[str]) -> None:
        """Delete rows for good."""
        with self._file.transaction() as database:
            number, change = _kind(database, kind)[0], _next_change(database)
            for part in _parts(ids):
                where = f"kind = ? AND id IN ({_marks(part)})"
                _delete(database, where, (number, *part), change)

    def delete_superseded(self, kind: str) -> int:
        """Delete all superseded rows of a kind for good."""
        with self._file.transaction() as database:
            change = _next_change(database)
            where = "kind = ? AND superseded > 0"
            return _delete(database, where, (_kind(database, kind)[0],), change)

    def read(self, kind: str, ids: Sequence[str], *, vectors: bool = True) -> GalleryRows:
        """Return the rows with these ids that are there."""
        columns = f"{_COLUMNS}, vector" if vectors else _COLUMNS
        values: dict[str, tuple[Any, ...]] = {}
        with self._file.session() as database:
            number, dim = _kind(database, kind)
            for part in _parts(ids):
                sql = f"SELECT {columns} FROM rows WHERE kind = ? AND id IN ({_marks(part)})"
                values |= {row[0]: row for row in database.execute(sql, (number, *part))}
        return _rows([values[i] for i in ids if i in values], dim if vectors else 0)

    def scan(self, kind: str, *, batch: int = 4096, vectors: bool = True) -> Iterator[GalleryRows]:
        """Yield all rows in ascending order of ids."""
        columns = f"{_COLUMNS}, vector" if vectors else _COLUMNS
        sql = f"SELECT {columns} FROM rows WHERE kind = ? AND id > ? ORDER BY id LIMIT ?"
        last = ""
        while True:
            with self._file.session() as database:
                number, dim = _kind(database, kind)
                part = database.execute(sql, (number, last, batch)).fetchall()
            if not part:
                return
            yield _rows(part, dim if vectors else 0)
            last = part[-1][0]

    def count(self, kind: str) -> Count:
        """Count the rows of a kind."""
        sql = "SELECT count(*), coalesce(sum(superseded = 0), 0) FROM rows WHERE kind = ?"
        with self._file.session() as database:
            return Count(*database.execute(sql, (_kind(database, kind)[0],)).fetchone())

    def has_live(self, kind: str) -> bool:
        """Return whether a kind has a live row."""
        sql = "SELECT EXISTS (SELECT 1 FROM rows WHERE kind = ? AND superseded = 0)"
        with self._file.session() as database:
            return bool(database.execute(sql, (_kind(database, kind)[0],)).fetchone()[0])

    def search(self, kind: str, queries: NDArray[np.float32], search: Search) -> list[list[Found]]:
        """Return the nearest rows for each query."""
        with self._file.snapshot() as database:
            index = self._fresh_index(database, kind, with_superseded=search.with_superseded)
            allowed = None
            if search.where:
                condition, values = _condition(search.where)
                sql = f"SELECT number FROM rows WHERE kind = ? AND {condition}"
                matches = database.execute(sql, (_kind(database, kind)[0], *values)).fetchall()
                allowed = np.array(matches, dtype=np.int64).reshape(-1)
            numbers, similarities = index.search(
                queries, search.k, allowed, approximate=search.approximate
            )
            return _described(database, numbers, similarities)

    def build_index(self, kind: str) -> None:
        """Build a graph for approximate search, and keep it in a file."""
        with self._file.snapshot() as database:
            self._fresh_index(database, kind).build_graph()

    def has_index(self, kind: str) -> bool:
        """Return whether a kind has a graph for approximate search."""
        with self._file.session() as database:
            return saved_graph(self._index_file(_kind(database, kind)[0])) is not None

    def problems(self) -> list[str]:
        """Return what SQLite finds wrong with its file, and which graphs are damaged."""
        try:
            with self._file.session() as database:
                messages = [str(row[0]) for row in database.execute("PRAGMA integrity_check")]
        except UserError as error:
            return [str(error)]
        problems = [f"{self._file.path}: {line}" for line in messages if line != "ok"]
        return problems + graph_problems(self._file.path.parent.glob("index-*"))

    def _fresh_index(
        self, database: sqlite3.Connection, kind: str, *, with_superseded: bool = False
    ) -> MemoryIndex:
        """Return the vectors in memory, brought up to date with the database."""
        number, dim = _kind(database, kind)
        if with_superseded and not _has_superseded(database, number):
            with_superseded = False  # the same rows: once in memory is enough
            self._indexes.pop((number, True), None)
        empty = MemoryIndex(dim, self._index_file(number), with_superseded)
        index = self._indexes.setdefault((number, with_superseded), empty)
        _follow(database, number, index)
        return index

    def _index_file(self, number: int) -> Path:
        return self._file.path.with_name(f"index-{number}.faiss")


def _described(
    database: sqlite3.Connection,
    numbers: list[list[int]],
    similarities: list[list[float]],
) -> list[list[Found]]:
    """Return the found rows with id, label and metadata."""
    wanted = sorted({number for row in numbers for number in row})
    texts: dict[int, tuple[str, str | None, str]] = {}
    for part in _parts(wanted):
        sql = f"SELECT number, id, label, metadata FROM rows WHERE number IN ({_marks(part)})"
        texts |= {row[0]: row[1:] for row in database.execute(sql, part)}
    return in_order(
        [
            Found(texts[number][0], texts[number][1], json.loads(texts[number][2]), similarity)
            for number, similarity in zip(*pair, strict=True)
        ]
        for pair in zip(numbers, similarities, strict=True)
    )


def _follow(database: sqlite3.Connection, number: int, index: MemoryIndex) -> None:
    """Bring the vectors in memory up to date with a snapshot of the database."""
    (clock,) = database.execute("SELECT change FROM clock").fetchone()
    if clock == index.change:
        return
    if clock < index.change:
        raise UserError(
            f"{DATABASE_FILE} went back to an earlier state while it was open: open the gallery "
            "again (end a server, and start it again)"
        )
    since = (number, index.change)
    where = "WHERE kind = ? AND change > ?"
    (count,) = database.execute(f"SELECT count(*) FROM rows {where}", since).fetchone()
    sql = f"SELECT number, superseded, vector, change FROM rows {where} ORDER BY number"
    changed = database.execute(sql, since)
    sql = f"SELECT row FROM deleted {where} ORDER BY row"
    deleted = [row[0] for row in database.execute(sql, since)]
    index.follow(Changes(clock, deleted, count, changed))


def _mark(
    database: sqlite3.Connection, kind: int, marks: Iterator[tuple[int, str]], change: int
) -> None:
    """Mark live rows of a kind as superseded: (step, id) each."""
    database.executemany(
        "UPDATE rows SET superseded = ?, change = ? WHERE kind = ? AND id = ? AND superseded = 0",
        ((step, change, kind, row_id) for step, row_id in marks),
    )


def _kind(database: sqlite3.Connection, kind: str) -> tuple[int, int]:
    """Return the number and the dimension of a kind."""
    row = database.execute("SELECT number, dim FROM kinds WHERE kind = ?", (kind,)).fetchone()
    if row is None:
        raise UserError(f"the gallery has no rows of the kind {kind}")
    return row


def _has_superseded(database: sqlite3.Connection, kind: int) -> bool:
    sql = "SELECT EXISTS (SELECT 1 FROM rows WHERE kind = ? AND superseded > 0)"
    return bool(database.execute(sql, (kind,)).fetchone()[0])


def _next_change(database: sqlite3.Connection) -> int:
    database.execute("UPDATE clock SET change = change + 1")
    return int(database.execute("SELECT change FROM clock").fetchone()[0])


def _delete(database: sqlite3.Connection, where: str, values: tuple[Any, ...], change: int) -> int:
    """Delete rows, and remember their numbers for the vectors in memory."""
    database.execute(
        f"INSERT INTO deleted SELECT kind, number, ? FROM rows WHERE {where}", (change, *values)
    )
    return database.execute(f"DELETE FROM rows WHERE {where}", values).rowcount


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _IDS_PER_QUERY):
        yield values[start : start + _IDS_PER_QUERY]


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))


def _rows(records: Sequence[tuple[Any, ...]], dim: int) -> GalleryRows:
    """Return rows of the table as ``GalleryRows``."""
    vectors = np.empty((len(records), dim), dtype=np.float32)
    for place, row in enumerate(records if dim else ()):
        if len(row[6]) != 4 * dim:
            raise UserError(f"row {row[0]!r} is damaged: {len(row[6])} bytes, not {4 * dim}")
        vectors[place] = np.frombuffer(row[6], dtype="<f4")
    return recorded_rows(records, vectors)


def _condition(where: Where) -> tuple[str, list[Scalar]]:
    """Return a filter as a condition of SQL with its values."""
    values: list[Scalar] = []
    keys: list[str] = []
    for key, choices in where.items():
        path = f'$."{key}"'
        either: list[str] = []
        if None in choices:
            either.append("coalesce(json_type(metadata, ?), 'null') = 'null'")
            values.append(path)
        for types, alike in _by_type(choices):  # one term each: SQLite refuses deep expressions
            value = "json_type(metadata, ?)" if "true" in types else "json_extract(metadata, ?)"
            among = f"{value} IN (SELECT value FROM json_each(?))"
            either.append(f"(json_type(metadata, ?) IN {types} AND {among})")
            values += [path, path, json.dumps(alike)]
        keys.append(f"({' OR '.join(either) or 'FALSE'})")
    return " AND ".join(keys), values


def _by_type(choices: Sequence[Scalar]) -> Iterator[tuple[str, list[Scalar]]]:
    """Yield the types that SQLite has for some of the choices, and these choices."""
    types = {
        "('true', 'false')": [json.dumps(one) for one in choices if isinstance(one, bool)],
        "('text')": [one for one in choices if isinstance(one, str)],
        "('integer', 'real')": [
            one for one in choices if isinstance(one, int | float) and not isinstance(one, bool)
        ],
    }
    return ((name, list[Scalar](alike)) for name, alike in types.items() if alike)
