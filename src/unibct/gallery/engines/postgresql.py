"""PostgreSQL with pgvector: a table for each kind, every step of writing one transaction.

Exact search reads the table (or the rows that a filter leaves); approximate search uses an HNSW
index over the live rows. Passwords come from ``PGPASSWORD`` or ``~/.pgpass``.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.engines.engine import Count, Found, Search
from unibct.gallery.engines.server import (
    kind_name,
    lock_number,
    refuse_secret,
    registry_name,
)
from unibct.gallery.engines.table import Place
from unibct.gallery.rows import GalleryRows

try:
    import psycopg
    from pgvector import Vector
    from pgvector.psycopg import register_vector
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise UserError(
        "PostgreSQL needs psycopg and pgvector: pip install 'unibct[postgresql]'"
    ) from error

_CONNECT_SECONDS = 10
_LONGEST_VECTOR = 16_000  # of pgvector's type
_LONGEST_INDEXED = 2_000  # of its index for single precision
_LONGEST_HALF_INDEXED = 4_000  # of its index for half precision
_LONGEST_INLINE = 1_536  # vectors up to here fit into a page of 8 kB beside the rest of a row
_LARGEST_EF_SEARCH = 1_000
_COLUMNS = ("id", "label", "metadata", "written", "vector", "step", "superseded", "digest")
_TYPES = ("text", "text", "jsonb", "text", "vector", "int8", "int8", "text")
_COPIES = sql.SQL(", ").join(map(sql.Identifier, _COLUMNS))

Cursor: TypeAlias = "psycopg.Cursor[tuple[Any, ...]]"
Result = TypeVar("Result")


def open_engine(place: Place) -> "PostgresqlEngine":
    """Return the engine; nothing is written before ``create``."""
    return PostgresqlEngine(place)


class PostgresqlEngine:
    """An engine on a PostgreSQL server, see ``Engine``; several threads may use it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = _Server(place.address)
        self._registry = sql.Identifier(registry_name(place))

    def create(self) -> None:
        """Make the table of kinds, and pgvector's types if the database lacks them."""
        self._server.run(lambda cursor: cursor.execute("CREATE EXTENSION IF NOT EXISTS vector"))
        self._server.close()  # the next connection knows the new types
        self._server.run(
            lambda cursor: cursor.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (number bigserial PRIMARY KEY, "
                    "kind text NOT NULL UNIQUE, dim int NOT NULL)"
                ).format(self._registry)
            )
        )
        if any(self.count(kind).rows for kind in self.kinds()):
            raise UserError(
                f"{self._place.address} has rows of a gallery {self._place.name} already; "
                "choose another name or database"
            )

    def destroy(self) -> None:
        """Drop the tables of this gallery."""

        def drop(cursor: Cursor) -> None:
            if not _exists(cursor, registry_name(self._place)):
                return
            for kind in self._kinds(cursor):
                cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(kind)))
            cursor.execute(sql.SQL("DROP TABLE {}").format(self._registry))

        self._server.run(drop)

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def kinds(self) -> dict[str, int]:
        """Return kind -> dimension."""
        return self._run(self._kinds)

    def add_kind(self, kind: str, dim: int) -> None:
        """Make a table with its indexes."""
        if dim > _LONGEST_VECTOR:
            raise UserError(
                f"{self._place.address}: pgvector keeps at most {_LONGEST_VECTOR} numbers a row, "
                f"not {dim}; take another engine"
            )
        insert = sql.SQL("INSERT INTO {} (kind, dim) VALUES (%s, %s) ON CONFLICT DO NOTHING")

        def add(cursor: Cursor) -> None:
            cursor.execute(insert.format(self._registry), (kind, dim))
            if cursor.rowcount:
                for statement in _statements_of_kind(kind_name(self._place, kind), dim):
                    cursor.execute(statement)

        self._write(add)

    def drop_kind(self, kind: str) -> None:
        """Drop the table of a kind."""

        def drop(cursor: Cursor) -> None:
            cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(kind)))
            cursor.execute(
                sql.SQL("DELETE FROM {} WHERE kind = %s").format(self._registry), (kind,)
            )

        self._write(drop)

    def write(self, kind: str, rows: GalleryRows, *, supersedes: Sequence[str] = ()) -> None:
        """Add or replace rows, and mark those of other kinds, in one transaction."""
        others = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in _COLUMNS[1:]
        )
        upsert = sql.SQL(
            "INSERT INTO {} ({}) SELECT {} FROM unibct_incoming ON CONFLICT (id) DO UPDATE SET {}"
        ).format(self._table(kind), _COPIES, _COPIES, others)
        mark = sql.SQL(
            "UPDATE {} AS older SET superseded = newer.step FROM unibct_incoming AS newer "
            "WHERE older.id = newer.id AND older.superseded = 0"
        )

        def write(cursor: Cursor) -> None:
            _copy_in(cursor, rows)
            cursor.execute(upsert)
            for other in supersedes:
                cursor.execute(mark.format(self._table(other)))

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
        statement = _select(vectors, self._table(kind), "WHERE id = ANY(%s)")
        found = self._run(lambda cursor: cursor.execute(statement, (list(ids),)).fetchall(), kind)
        by_id = {row[0]: row for row in found}
        dim = self.kinds()[kind] if vectors else 0
        return _rows([by_id[row_id] for row_id in ids if row_id in by_id], dim)

    def scan(self, kind: str, *, batch: int = 4096, vectors: bool = True) -> Iterator[GalleryRows]:
        """Yield all rows in ascending order of ids."""
        statement = _select(vectors, self._table(kind), "WHERE id > %s ORDER BY id LIMIT %s")
        last = ""
        while True:
            values = (last, batch)
            part = self._run(lambda cursor: cursor.execute(statement, values).fetchall(), kind)  # noqa: B023
            if not part:
                return
            yield _rows(part, len(part[0][6].to_numpy()) if vectors else 0)
            last = part[-1][0]

    def count(self, kind: str) -> Count:
        """Count the rows of a kind."""
        statement = sql.SQL(
            "SELECT count(*), count(*) FILTER (WHERE superseded = 0) FROM {}"
        ).format(self._table(kind))
        found = self._run(lambda cursor: cursor.execute(statement).fetchall(), kind)
        return Count(*found[0])

    def has_live(self, kind: str) -> bool:
        """Return whether a kind has a live row."""
        statement = sql.SQL("SELECT 1 FROM {} WHERE superseded = 0 LIMIT 1").format(
            self._table(kind)
        )
        return bool(self._run(lambda cursor: cursor.execute(statement).fetchall(), kind))

    def search(self, kind: str, queries: NDArray[np.float32], search: Search) -> list[list[Found]]:
        """Return the nearest rows for each query."""
        condition, values = _condition(search)
        parts = {"table": self._table(kind), "condition": condition}
        exact = _exact_search(parts)
        graph = _graph_search(parts, queries.shape[1])

        def find(cursor: Cursor) -> list[list[Found]]:
            approximate = (
                search.approximate
                and not search.with_superseded  # those are not in the index
                and _exists(cursor, _index_name(kind_name(self._place, kind)))
            )
            _choose_plan(cursor, search.k if approximate else 0)
            found: list[list[Found]] = []
            for query in queries:
                given = {**values, "query": Vector(query), "k": search.k}
                rows = cursor.execute(graph if approximate else exact, given).fetchall()
                if approximate and len(rows) < search.k:  # the filter leaves too few in the graph
                    _choose_plan(cursor, 0)
                    rows = cursor.execute(exact, given).fetchall()
                    _choose_plan(cursor, search.k)
                found.append([Found(*row[:2], json.loads(row[2]), row[3]) for row in rows])
            return found

        return self._run(find, kind)

    def build_index(self, kind: str) -> None:
        """Build the HNSW index beside the one in use, then put it in its place."""
        table, dim = kind_name(self._place, kind), self._dim(kind)
        if dim > _LONGEST_HALF_INDEXED:
            raise UserError(
                f"pgvector cannot index {dim} numbers a row, only {_LONGEST_HALF_INDEXED}; "
                "exact search works"
            )
        statements = _statements_of_index(table, dim)

        def build(cursor: Cursor) -> None:
            for statement in statements:
                cursor.execute(statement)

        self._run(build, kind)

    def has_index(self, kind: str) -> bool:
        """Return whether a kind has an HNSW index."""
        name = _index_name(kind_name(self._place, kind))
        return self._run(lambda cursor: _exists(cursor, name))

    def problems(self) -> list[str]:
        """Read every page (PostgreSQL checks their sums), and run amcheck if it is installed."""
        found: list[str] = []
        for kind in self.kinds():
            table = kind_name(self._place, kind)
            try:
                found += self._server.run(lambda cursor: _check_table(cursor, table))  # noqa: B023
            except UserError as error:
                if not isinstance(error.__cause__, _DAMAGE):
                    raise
                found.append(f"{table}: {error}")
        return found

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

    def _execute(self, kind: str, statement: str, values: tuple[Any, ...]) -> int:
        """Run a statement on the table of a kind, and return how many rows it changed."""
        composed = sql.SQL(statement).format(self._table(kind))  # pyright: ignore
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
            if not isinstance(error.__cause__, psycopg.errors.UndefinedTable):
                raise
            what = f"no rows of the kind {kind}" if kind else f"no gallery {self._place.name}"
            raise UserError(f"{self._place.address} has {what}") from error


class _Server:
    """Connections to a server: opened when they are needed, and again after a break."""

    def __init__(self, address: str) -> None:
        try:
            given = conninfo_to_dict(address)
        except psycopg.Error as error:
            raise UserError(
                f"{address}: {_first_line(error)}; write postgresql://USER@HOST/DATABASE"
            ) from error
        password = given.get("password")
        instead = "set PGPASSWORD or write it to ~/.pgpass"
        refuse_secret(address, str(password) if password else None, instead)
        self._address = address
        self._timeout = int(given.get("connect_timeout") or _CONNECT_SECONDS)
        self._idle: list[psycopg.Connection[tuple[Any, ...]]] = []
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
            raise UserError(f"{self._address}: {_first_line(error)}") from error
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

    def _taken(self) -> "psycopg.Connection[tuple[Any, ...]]":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._opened()

    def _opened(self) -> "psycopg.Connection[tuple[Any, ...]]":
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
            if psycopg.types.TypeInfo.fetch(connection, "vector") is not None:
                register_vector(connection)
        except psycopg.Error as error:
            raise UserError(
                f"cannot reach PostgreSQL at {self._address}: {_first_line(error)}; start the "
                "server, or correct the address (a password belongs in PGPASSWORD or ~/.pgpass)"
            ) from error
        return connection


_DAMAGE = (
    psycopg.errors.DataCorrupted,
    psycopg.errors.IndexCorrupted,
    psycopg.errors.InternalError_,
)


def _transaction(
    connection: "psycopg.Connection[tuple[Any, ...]]", work: Callable[[Cursor], Result]
) -> Result:
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        return work(cursor)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _exists(cursor: Cursor, name: str) -> bool:
    """Return whether there is a table or index of this name."""
    found = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{name}"',)).fetchone()
    return bool(found and found[0])


def _index_name(table: str) -> str:
    return f"{table}_hnsw"


def _statements_of_kind(table: str, dim: int) -> list[sql.Composed]:
    """Return what makes the table of a kind."""
    texts = [
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


def _statements_of_index(table: str, dim: int) -> list[sql.Composed]:
    """Return what builds the index of live rows and puts it in the place of an older one."""
    half = dim > _LONGEST_INDEXED
    indexed = "(vector::halfvec({dim})) halfvec_ip_ops" if half else "vector vector_ip_ops"
    texts = [
        "SELECT set_config('maintenance_work_mem', greatest(65536, least(2097152, "
        "(SELECT count(*) FROM {table}) * ({dim} * 4 + 512) / 800))::text, true)",
        f"CREATE INDEX {{new}} ON {{table}} USING hnsw ({indexed}) "
        "WITH (m = 16, ef_construction = 100) WHERE superseded = 0",
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
            str(min(_LARGEST_EF_SEARCH, max(100, 2 * k))),
        ),
    )


def _exact_search(parts: dict[str, sql.Composable]) -> sql.Composed:
    return sql.SQL(
        "SELECT id, label, written, -(vector <#> %(query)s) FROM {table} WHERE {condition} "
        "ORDER BY vector <#> %(query)s, id LIMIT %(k)s"
    ).format(**parts)


def _graph_search(parts: dict[str, sql.Composable], dim: int) -> sql.Composed:
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


def _copy_in(cursor: Cursor, rows: GalleryRows) -> None:
    """Send rows to the server, into a table that only this transaction sees."""
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(_COLUMNS, _TYPES, strict=True))
    cursor.execute(
        sql.SQL(
            f"CREATE TEMP TABLE IF NOT EXISTS unibct_incoming ({columns}) ON COMMIT DELETE ROWS"
        )
    )
    with cursor.copy(
        sql.SQL("COPY unibct_incoming ({}) FROM STDIN (FORMAT BINARY)").format(_COPIES)
    ) as copy:
        copy.set_types(_TYPES)
        for place, metadata in enumerate(rows.metadata):
            copy.write_row(
                (
                    rows.ids[place],
                    rows.labels[place],
                    psycopg.types.json.Jsonb(metadata),
                    json.dumps(metadata, ensure_ascii=False, sort_keys=True),
                    Vector(rows.vectors[place]),
                    int(rows.steps[place]),
                    int(rows.superseded[place]),
                    rows.digests[place],
                )
            )


def _select(vectors: bool, table: sql.Identifier, rest: str) -> sql.Composed:
    columns = "id, label, written, step, superseded, digest" + (", vector" if vectors else "")
    return sql.SQL(f"SELECT {columns} FROM {{}} {rest}").format(table)


def _rows(found: Sequence[tuple[Any, ...]], dim: int) -> GalleryRows:
    """Return rows of a table as ``GalleryRows``."""
    vectors = np.empty((len(found), dim), dtype=np.float32)
    for place, row in enumerate(found if dim else ()):
        vectors[place] = row[6].to_numpy()
    return GalleryRows(
        tuple(row[0] for row in found),
        tuple(row[1] for row in found),
        tuple(json.loads(row[2]) for row in found),
        vectors,
        np.array([row[3] for row in found], dtype=np.int64),
        np.array([row[4] for row in found], dtype=np.int64),
        tuple(row[5] for row in found),
    )


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
    found = cursor.execute(
        sql.SQL("SELECT blkno, offnum, msg FROM verify_heapam({}::regclass)").format(regclass)
    ).fetchall()
    return [f"{table}: page {page}, row {row}: {message}" for page, row, message in found]
