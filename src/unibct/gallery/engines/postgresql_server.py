"""Connections to a PostgreSQL server: transactions, and what is said when it is away.

Passwords come from ``PGPASSWORD`` or ``~/.pgpass``.
"""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, LiteralString, TypeAlias, TypeVar

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector import Vector
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types import TypeInfo

from unibct.errors import UserError, first_line
from unibct.gallery.engines import Found, Search
from unibct.gallery.engines.server import refuse_secret

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


# Searching a table of PostgreSQL: exactly by reading it, approximately by an HNSW index.
#
# The index covers the live rows. Rows that a filter leaves are found by other indexes.

_LONGEST_INDEXED = 2_000  # of pgvector's index for single precision
_LONGEST_HALF_INDEXED = 4_000  # of its index for half precision
_LARGEST_EF_SEARCH = 1_000


def search_table(
    cursor: Cursor, table: str, queries: NDArray[np.float32], search: Search
) -> list[list[Found]]:
    """Return the nearest rows of a table for each query."""
    condition, values = _condition(search)
    parts = {"table": sql.Identifier(table), "condition": condition}
    exact, graph = _exact_search(parts), _graph_search(parts, queries.shape[1])
    approximate = (
        search.approximate
        and not search.with_superseded  # those are not in the index
        and exists(cursor, index_name(table))
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


def build_index(cursor: Cursor, table: str, dim: int) -> None:
    """Build the index of a table beside the one in use, then put it in its place."""
    if dim > _LONGEST_HALF_INDEXED:
        raise UserError(
            f"pgvector cannot index {dim} numbers a row, only {_LONGEST_HALF_INDEXED}; "
            "exact search works"
        )
    for statement in _statements_of_index(table, dim):
        cursor.execute(statement)


def index_name(table: str) -> str:
    """Return the name of the index of a table."""
    return f"{table}_hnsw"


def exists(cursor: Cursor, name: str) -> bool:
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
        "index": sql.Identifier(index_name(table)),
        "new": sql.Identifier(f"{index_name(table)}_new"),
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
