"""PostgreSQL with pgvector: a table for each kind, every step of writing one transaction.

Exact search reads the table (or the rows that a filter leaves); approximate search uses an HNSW
index over the live rows. Passwords come from ``PGPASSWORD`` or ``~/.pgpass``.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, LiteralString, TypeVar

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.engines import Count, Found, Place, Search
from unibct.gallery.engines.server import kind_name, lock_number, registry_name
from unibct.gallery.rows import GalleryRows, recorded_rows

try:
    from pgvector import Vector
    from psycopg import errors, sql
    from psycopg.types.json import Jsonb

    from unibct.gallery.engines.postgresql_server import (
        Cursor,
        PostgresqlServer,
        build_index,
        exists,
        index_name,
        search_table,
    )
except ImportError as error:
    raise UserError(
        "PostgreSQL needs psycopg and pgvector: pip install 'unibct[postgresql]'"
    ) from error

_DAMAGE = (errors.DataCorrupted, errors.IndexCorrupted, errors.InternalError_)
_LONGEST_VECTOR = 16_000  # of pgvector's type
_LONGEST_INLINE = 1_536  # vectors up to here fit into a page of 8 kB beside the rest of a row
_COLUMNS = ("id", "label", "metadata", "written", "vector", "step", "superseded", "digest")
_TYPES = ("text", "text", "jsonb", "text", "vector", "int8", "int8", "text")
_NAMES: LiteralString = ", ".join(_COLUMNS)
_OTHERS: LiteralString = ", ".join([f"{name} = excluded.{name}" for name in _COLUMNS[1:]])
_UPSERT = sql.SQL(
    f"INSERT INTO {{}} ({_NAMES}) SELECT {_NAMES} FROM unibct_incoming "
    f"ON CONFLICT (id) DO UPDATE SET {_OTHERS}"
)
_MARK = sql.SQL(
    "UPDATE {} AS older SET superseded = newer.step FROM unibct_incoming AS newer "
    "WHERE older.id = newer.id AND older.superseded = 0"
)

Result = TypeVar("Result")


def open_engine(place: Place) -> "PostgresqlEngine":
    """Return the engine; nothing is written before ``create``."""
    return PostgresqlEngine(place)


class PostgresqlEngine:
    """An engine on a PostgreSQL server, see ``Engine``; several threads may use it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = PostgresqlServer(place.address)
        self._registry = sql.Identifier(registry_name(place))

    def create(self) -> None:
        """Make the table of kinds, and pgvector's types if the database lacks them."""
        self._server.run(lambda cursor: cursor.execute("CREATE EXTENSION IF NOT EXISTS vector"))
        self._server.close()  # the next connection knows the new types
        statement = sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (number bigserial PRIMARY KEY, "
            "kind text NOT NULL UNIQUE, dim int NOT NULL)"
        ).format(self._registry)
        self._write(lambda cursor: cursor.execute(statement))
        if any(self.count(kind).rows for kind in self.kinds()):
            raise UserError(
                f"{self._place.address} has rows of a gallery {self._place.name} already; "
                "choose another name or database"
            )

    def destroy(self) -> None:
        """Drop the tables of this gallery."""

        def drop(cursor: Cursor) -> None:
            if exists(cursor, registry_name(self._place)):
                for kind in self._kinds(cursor):
                    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(kind)))
                cursor.execute(sql.SQL("DROP TABLE {}").format(self._registry))

        self._write(drop)

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def kinds(self) -> dict[str, int]:
        """Return kind -> dimension."""
        return self._run(self._kinds)

    def add_kind(self, kind: str, dim: int) -> None:
        """Make a table with its indexes."""
        insert = sql.SQL(
            "INSERT INTO {} (kind, dim) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        ).format(self._registry)

        def add(cursor: Cursor) -> None:
            if cursor.execute(insert, (kind, dim)).rowcount:
                for statement in _statements_of_kind(kind_name(self._place, kind), dim):
                    cursor.execute(statement)

        self._write(add)

    def drop_kind(self, kind: str) -> None:
        """Drop the table of a kind."""
        forget = sql.SQL("DELETE FROM {} WHERE kind = %s").format(self._registry)

        def drop(cursor: Cursor) -> None:
            cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(kind)))
            cursor.execute(forget, (kind,))

        self._write(drop)

    def write(self, kind: str, rows: GalleryRows, *, supersedes: Sequence[str] = ()) -> None:
        """Add or replace rows, and mark those of other kinds, in one transaction."""

        def write(cursor: Cursor) -> None:
            _copy_in(cursor, rows)
            cursor.execute(_UPSERT.format(self._table(kind)))
            for other in supersedes:
                cursor.execute(_MARK.format(self._table(other)))

        self._write(write, kind)

    def supersede(self, kind: str, ids: Sequence[str], step: int) -> None:
        """Mark live rows as superseded by a step."""
        statement = "UPDATE {} SET superseded = %s WHERE id = ANY(%s) AND superseded = 0"
        self._execute(kind, statement, (step, list(ids)))

    def undo(self, step: int) -> None:
        """Delete the rows of a step and remove its marks, in one transaction."""
        delete = sql.SQL("DELETE FROM {} WHERE step = %s")
        unmark = sql.SQL("UPDATE {} SET superseded = 0 WHERE superseded = %s")

        def undo(cursor: Cursor) -> None:
            for kind in self._kinds(cursor):
                cursor.execute(delete.format(self._table(kind)), (step,))
                cursor.execute(unmark.format(self._table(kind)), (step,))

        self._write(undo)

    def delete(self, kind: str, ids: Sequence[str]) -> None:
        """Delete rows for good."""
        self._execute(kind, "DELETE FROM {} WHERE id = ANY(%s)", (list(ids),))

    def delete_superseded(self, kind: str) -> int:
        """Delete all superseded rows of a kind for good."""
        return self._execute(kind, "DELETE FROM {} WHERE superseded <> 0", ())

    def read(self, kind: str, ids: Sequence[str], *, vectors: bool = True) -> GalleryRows:
        """Return the rows with these ids that are there."""
        records = self._fetch(kind, _select(vectors, "WHERE id = ANY(%s)"), (list(ids),))
        by_id = {row[0]: row for row in records}
        return _rows([by_id[i] for i in ids if i in by_id], self._dim(kind) if vectors else 0)

    def scan(self, kind: str, *, batch: int = 4096, vectors: bool = True) -> Iterator[GalleryRows]:
        """Yield all rows in ascending order of ids."""
        statement = _select(vectors, "WHERE id > %s ORDER BY id LIMIT %s")
        dim, last = self._dim(kind) if vectors else 0, ""
        while part := self._fetch(kind, statement, (last, batch)):
            yield _rows(part, dim)
            last = part[-1][0]

    def count(self, kind: str) -> Count:
        """Count the rows of a kind."""
        statement = "SELECT count(*), count(*) FILTER (WHERE superseded = 0) FROM {}"
        return Count(*self._fetch(kind, statement)[0])

    def has_live(self, kind: str) -> bool:
        """Return whether a kind has a live row."""
        return bool(self._fetch(kind, "SELECT 1 FROM {} WHERE superseded = 0 LIMIT 1"))

    def search(self, kind: str, queries: NDArray[np.float32], search: Search) -> list[list[Found]]:
        """Return the nearest rows for each query."""
        table = kind_name(self._place, kind)
        return self._run(lambda cursor: search_table(cursor, table, queries, search), kind)

    def build_index(self, kind: str) -> None:
        """Build the HNSW index of a kind."""
        table, dim = kind_name(self._place, kind), self._dim(kind)
        self._write(lambda cursor: build_index(cursor, table, dim), kind)

    def has_index(self, kind: str) -> bool:
        """Return whether a kind has an HNSW index."""
        name = index_name(kind_name(self._place, kind))
        return self._run(lambda cursor: exists(cursor, name))

    def problems(self) -> list[str]:
        """Read every page (PostgreSQL checks their sums), and run amcheck if it is installed."""
        problems: list[str] = []
        for kind in self.kinds():
            table = kind_name(self._place, kind)
            try:
                problems += self._server.run(lambda cursor: _check_table(cursor, table))  # noqa: B023
            except UserError as error:
                if not isinstance(error.__cause__, _DAMAGE):
                    raise
                problems.append(f"{table}: {error}")
        return problems

    def _table(self, kind: str) -> sql.Identifier:
        return sql.Identifier(kind_name(self._place, kind))

    def _kinds(self, cursor: Cursor) -> dict[str, int]:
        statement = sql.SQL("SELECT kind, dim FROM {} ORDER BY number").format(self._registry)
        return dict(cursor.execute(statement).fetchall())

    def _dim(self, kind: str) -> int:
        kinds = self.kinds()
        if kind not in kinds:
            raise UserError(f"{self._place.address} has no rows of the kind {kind}")
        return kinds[kind]

    def _fetch(
        self, kind: str, statement: LiteralString, values: tuple[Any, ...] = ()
    ) -> list[tuple[Any, ...]]:
        """Run a statement on the table of a kind, and return what it finds."""
        composed = sql.SQL(statement).format(self._table(kind))
        return self._run(lambda cursor: cursor.execute(composed, values).fetchall(), kind)

    def _execute(self, kind: str, statement: LiteralString, values: tuple[Any, ...]) -> int:
        """Run a statement on the table of a kind, and return how many rows it changed."""
        composed = sql.SQL(statement).format(self._table(kind))
        return self._write(lambda cursor: cursor.execute(composed, values).rowcount, kind)

    def _write(self, work: Callable[[Cursor], Result], kind: str = "") -> Result:
        """Run a transaction that writes.

        A process may be killed while the server still works for it. The lock lets the next writer
        wait for that, so that it sees whatever the killed one has written.
        """

        def locked(cursor: Cursor) -> Result:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(self._place),))
            return work(cursor)

        return self._run(locked, kind)

    def _run(self, work: Callable[[Cursor], Result], kind: str = "") -> Result:
        """Run a transaction; a table that is not there is named by gallery and kind."""
        try:
            return self._server.run(work)
        except UserError as error:
            if not isinstance(error.__cause__, errors.UndefinedTable):
                raise
            what = f"no rows of the kind {kind}" if kind else f"no gallery {self._place.name}"
            raise UserError(f"{self._place.address} has {what}") from error


def _statements_of_kind(table: str, dim: int) -> list[sql.Composed]:
    """Return what makes the table of a kind."""
    if dim > _LONGEST_VECTOR:
        raise UserError(
            f"pgvector keeps at most {_LONGEST_VECTOR} numbers a row, not {dim}; "
            "take another engine"
        )
    texts: list[LiteralString] = [
        'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, label text, '
        "metadata jsonb NOT NULL, written text NOT NULL, vector vector({dim}) NOT NULL, "
        "step bigint NOT NULL, superseded bigint NOT NULL, digest text NOT NULL)",
        "CREATE INDEX ON {table} (step)",
        "CREATE INDEX ON {table} (superseded) WHERE superseded <> 0",
        "CREATE INDEX ON {table} USING gin (metadata jsonb_path_ops)",
    ]
    if dim <= _LONGEST_INLINE:  # a search then reads pages in turn, not each vector by itself
        texts.append("ALTER TABLE {table} ALTER COLUMN vector SET STORAGE PLAIN")
    names = {"table": sql.Identifier(table), "dim": sql.Literal(dim)}
    return [sql.SQL(text).format(**names) for text in texts]


def _copy_in(cursor: Cursor, rows: GalleryRows) -> None:
    """Send rows to the server, into a table that only this transaction sees."""
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(_COLUMNS, _TYPES, strict=True))
    cursor.execute(
        sql.SQL(
            f"CREATE TEMP TABLE IF NOT EXISTS unibct_incoming ({columns}) ON COMMIT DELETE ROWS"
        )
    )
    with cursor.copy(f"COPY unibct_incoming ({_NAMES}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(_TYPES)
        for place, metadata in enumerate(rows.metadata):
            copy.write_row(
                (
                    rows.ids[place],
                    rows.labels[place],
                    Jsonb(metadata),
                    json.dumps(metadata, ensure_ascii=False, sort_keys=True),
                    Vector(rows.vectors[place]),
                    int(rows.steps[place]),
                    int(rows.superseded[place]),
                    rows.digests[place],
                )
            )


def _select(vectors: bool, rest: LiteralString) -> LiteralString:
    vector = ", vector" if vectors else ""
    return f"SELECT id, label, written, step, superseded, digest{vector} FROM {{}} {rest}"


def _rows(records: Sequence[tuple[Any, ...]], dim: int) -> GalleryRows:
    """Return rows of a table as ``GalleryRows``."""
    vectors = np.empty((len(records), dim), dtype=np.float32)
    for place, row in enumerate(records if dim else ()):
        vectors[place] = row[6].to_numpy()
    return recorded_rows(records, vectors)


def _check_table(cursor: Cursor, table: str) -> list[str]:
    """Return what is wrong with a table; damage that stops the reading is an error of psycopg."""
    name = sql.Identifier(table)
    cursor.execute("SELECT set_config('enable_indexonlyscan', 'off', true)")
    cursor.execute(
        sql.SQL(
            "SELECT sum(vector_dims(vector) + length(written) + length(digest)) FROM {}"
        ).format(name)
    )
    if not cursor.execute("SELECT 1 FROM pg_extension WHERE extname = 'amcheck'").fetchone():
        return []
    regclass = sql.Literal(f'"{table}"')
    cursor.execute(
        sql.SQL(
            "SELECT bt_index_check(indexrelid, true) FROM pg_index JOIN pg_class ON "
            "pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam "
            "WHERE indrelid = {}::regclass AND amname = 'btree'"
        ).format(regclass)
    )
    faults = cursor.execute(
        sql.SQL("SELECT blkno, offnum, msg FROM verify_heapam({}::regclass)").format(regclass)
    ).fetchall()
    return [f"{table}: page {page}, row {row}: {message}" for page, row, message in faults]
