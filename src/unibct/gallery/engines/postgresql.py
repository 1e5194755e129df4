"""PostgreSQL with pgvector: a table for each kind, every step of writing one transaction.

Exact search reads the table (or the rows that a filter leaves); approximate search uses an HNSW
index over the live rows. Passwords come from ``PGPASSWORD`` or ``~/.pgpass``.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, LiteralString, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError, first_line
from unibct.gallery.engines import Count, Found, Place, Search, refuse_secret
from unibct.gallery.rows import GalleryRows, recorded_rows

try:
    import psycopg
    from pgvector import Vector
    from pgvector.psycopg import register_vector
    from psycopg import errors, sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types import TypeInfo
    from psycopg.types.json import Jsonb
except ImportError as error:
    raise UserError(
        "PostgreSQL needs psycopg and pgvector: pip install 'unibct[postgresql]'"
    ) from error

_CONNECT_SECONDS = 10

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]
Result = TypeVar("Result")


class PostgresqlServer:
    """Connections to a server: opened when they are needed, and again after a break."""

    def __init__(self, address: str) -> None:
        try:
            given = conninfo_to_dict(address)
        except psycopg.Error as error:
            raise UserError(
                f"{address}: {first_line(error)}; write postgresql://USER@HOST/DATABASE"
            ) from error
        password = given.get("password")
        instead = "set PGPASSWORD or write it to ~/.pgpass"
        refuse_secret(address, str(password) if password else None, instead)
        self._address = address
        self._timeout = int(given.get("connect_timeout") or _CONNECT_SECONDS)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    def run(self, work: Callable[[Cursor], Result]) -> Result:
        """Run a transaction.

        If the connection breaks, it is run once more on a new one: whatever the engine does may
        be repeated.
        """
        connection = self._taken()
        try:
            try:
                result = _transaction(connection, work)
            except psycopg.OperationalError:
                if not connection.closed:
                    raise
                self.close()  # the others are broken as well
                connection = self._opened()
                result = _transaction(connection, work)
        except psycopg.Error as error:
            connection.close()
            raise UserError(f"{self._address}: {first_line(error)}") from error
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return result

    def close(self) -> None:
        """Close the connections that are not at work."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _taken(self) -> Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._opened()

    def _opened(self) -> Connection:
        try:
            connection = psycopg.connect(
                self._address,
                autocommit=True,
                connect_timeout=self._timeout,
                prepare_threshold=None,  # a plan is chosen with the filter in sight
            )
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            if TypeInfo.fetch(connection, "vector") is not None:
                register_vector(connection)
        except psycopg.Error as error:
            raise UserError(
                f"cannot reach PostgreSQL at {self._address}: {first_line(error)}; start the "
                "server, or correct the address (a password belongs in PGPASSWORD or ~/.pgpass)"
            ) from error
        return connection


def _transaction(connection: Connection, work: Callable[[Cursor], Result]) -> Result:
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        return work(cursor)


# A gallery in the database.

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


class PostgresqlEngine:
    """An engine on a PostgreSQL server, see ``Engine``; several threads may use it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = PostgresqlServer(place.address)
        self._registry = sql.Identifier(place.registry)

    def create(self) -> None:
        """Make the table of kinds, and pgvector's types if the database lacks them."""
        self._server.run(lambda cursor: cursor.execute("CREATE EXTENSION IF NOT EXISTS vector"))
        self._server.close()  # the next connection knows the new types
        statement = sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (number bigserial PRIMARY KEY, "
            "kind text NOT NULL UNIQUE, dim int NOT NULL)"
        ).format(self._registry)
        self._write(lambda cursor: cursor.execute(statement))
        self._place.refuse_rows(self)

    def destroy(self) -> None:
        """Drop the tables of this gallery."""

        def drop(cursor: Cursor) -> None:
            if _exists(cursor, self._place.registry):
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
                for statement in _statements_of_kind(self._place.table(kind), dim):
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
        table = self._place.table(kind)
        return self._run(lambda cursor: _search_table(cursor, table, queries, search), kind)

    def build_index(self, kind: str) -> None:
        """Build the HNSW index of a kind."""
        table, dim = self._place.table(kind), self._dim(kind)
        self._write(lambda cursor: _build_index(cursor, table, dim), kind)

    def has_index(self, kind: str) -> bool:
        """Return whether a kind has an HNSW index."""
        name = _index_name(self._place.table(kind))
        return self._run(lambda cursor: _exists(cursor, name))

    def problems(self) -> list[str]:
        """Read every page (PostgreSQL checks their sums), and run amcheck if it is installed."""
        problems: list[str] = []
        for kind in self.kinds():
            table = self._place.table(kind)
            try:
                problems += self._server.run(lambda cursor: _check_table(cursor, table))  # noqa: B023
            except UserError as error:
                if not isinstance(error.__cause__, _DAMAGE):
                    raise
                problems.append(f"{table}: {error}")
        return problems

    def _table(self, kind: str) -> sql.Identifier:
        return sql.Identifier(self._place.table(kind))

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


def lock_number(place: Place) -> int:
    """Return a number of 64 bits for locks that writers of this gallery take."""
    digest = hashlib.blake2b(place.registry.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


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


# Searching a table: exactly by reading it, approximately by an HNSW index of the live rows. Rows
# that a filter leaves are found by other indexes.

_LONGEST_INDEXED = 2_000  # of pgvector's index for single precision
_LONGEST_HALF_INDEXED = 4_000  # of its index for half precision
_LARGEST_EF_SEARCH = 1_000


def _search_table(
    cursor: Cursor, table: str, queries: NDArray[np.float32], search: Search
) -> list[list[Found]]:
    """Return the nearest rows of a table for each query."""
    condition, values = _condition(search)
    parts = {"table": sql.Identifier(table), "condition": condition}
    exact, graph = _exact_search(parts), _graph_search(parts, queries.shape[1])
    approximate = (
        search.approximate
        and not search.with_superseded  # those are not in the index
        and _exists(cursor, _index_name(table))
    )
    _choose_plan(cursor, search.k if approximate else 0)
    hit_lists: list[list[Found]] = []
    for query in queries:
        given = {**values, "query": Vector(query), "k": search.k}
        rows = cursor.execute(graph if approximate else exact, given).fetchall()
        if approximate and len(rows) < search.k:  # the graph has too few that match the filter
            _choose_plan(cursor, 0)
            rows = cursor.execute(exact, given).fetchall()
            _choose_plan(cursor, search.k)
        hit_lists.append([Found(row[0], row[1], json.loads(row[2]), row[3]) for row in rows])
    return hit_lists


def _build_index(cursor: Cursor, table: str, dim: int) -> None:
    """Build the index of a table beside the one in use, then put it in its place."""
    if dim > _LONGEST_HALF_INDEXED:
        raise UserError(
            f"pgvector cannot index {dim} numbers a row, only {_LONGEST_HALF_INDEXED}; "
            "exact search works"
        )
    for statement in _statements_of_index(table, dim):
        cursor.execute(statement)


def _index_name(table: str) -> str:
    """Return the name of the index of a table."""
    return f"{table}_hnsw"


def _exists(cursor: Cursor, name: str) -> bool:
    """Return whether there is a table or index of this name."""
    answer = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{name}"',)).fetchone()
    return bool(answer and answer[0])


def _statements_of_index(table: str, dim: int) -> list[sql.Composed]:
    """Return what builds the index of live rows and puts it in the place of an older one."""
    half = dim > _LONGEST_INDEXED
    indexed = "(vector::halfvec({dim})) halfvec_ip_ops" if half else "vector vector_ip_ops"
    texts: list[LiteralString] = [
        "SELECT set_config('maintenance_work_mem', greatest(65536, least(2097152, "
        "(SELECT count(*) FROM {table}) * ({dim} * 4 + 512) / 800))::text, true)",
        f"CREATE INDEX {{new}} ON {{table}} USING hnsw ({indexed}) "
        "WITH (m = 16, ef_construction = 128) WHERE superseded = 0",
        "DROP INDEX IF EXISTS {index}",
        "ALTER INDEX {new} RENAME TO {index}",
    ]
    names = {
        "table": sql.Identifier(table),
        "index": sql.Identifier(_index_name(table)),
        "new": sql.Identifier(f"{_index_name(table)}_new"),
        "dim": sql.Literal(dim),
    }
    return [sql.SQL(text).format(**names) for text in texts]


def _choose_plan(cursor: Cursor, k: int) -> None:
    """Let the next searches of this transaction use the HNSW index for k rows, or not if k is 0.

    HNSW is the only index here that needs an index scan; filters use bitmap scans.
    """
    approximate = "on" if k else "off"
    cursor.execute(
        "SELECT set_config('enable_indexscan', %s, true), set_config('enable_seqscan', %s, true), "
        "set_config('enable_bitmapscan', %s, true), set_config('enable_sort', %s, true), "
        "set_config('hnsw.iterative_scan', 'strict_order', true), "
        "set_config('hnsw.ef_search', %s, true)",
        (
            approximate,
            "off" if k else "on",
            "off" if k else "on",
            "off" if k else "on",
            str(min(_LARGEST_EF_SEARCH, max(128, 4 * k))),
        ),
    )


def _exact_search(parts: Mapping[str, sql.Composable]) -> sql.Composed:
    return sql.SQL(
        "SELECT id, label, written, -(vector <#> %(query)s) FROM {table} WHERE {condition} "
        "ORDER BY vector <#> %(query)s, id LIMIT %(k)s"
    ).format(**parts)


def _graph_search(parts: Mapping[str, sql.Composable], dim: int) -> sql.Composed:
    order = "vector::halfvec({dim}) <#> %(query)s::halfvec({dim})"
    if dim <= _LONGEST_INDEXED:
        order = "vector <#> %(query)s"
    return sql.SQL(
        "SELECT id, label, written, -(vector <#> %(query)s) AS similarity FROM "
        f"(SELECT id, label, written, vector FROM {{table}} WHERE {{condition}} ORDER BY {order} "
        "LIMIT %(k)s) AS nearest ORDER BY similarity DESC, id"
    ).format(**parts, dim=sql.Literal(dim))


def _condition(search: Search) -> tuple[sql.Composed, dict[str, Any]]:
    """Return which rows may be found, as a condition with its values."""
    conditions: list[sql.Composable] = []
    values: dict[str, Any] = {}
    if not search.with_superseded:
        conditions.append(sql.SQL("superseded = 0"))
    for number, (key, choices) in enumerate(search.where.items()):
        either: list[sql.Composable] = []
        for place, choice in enumerate(choices):
            name = f"where_{number}_{place}"
            text = "metadata @> {}::jsonb"
            values[name] = json.dumps({key: choice})
            if choice is None:  # a name that a row does not have counts as null
                text = "coalesce(metadata -> {}, 'null') = 'null'"
                values[name] = key
            either.append(sql.SQL(text).format(sql.Placeholder(name)))
        conditions.append(
            sql.SQL("({})").format(sql.SQL(" OR ").join(either or [sql.SQL("false")]))
        )
    return sql.SQL(" AND ").join(conditions or [sql.SQL("true")]), values
