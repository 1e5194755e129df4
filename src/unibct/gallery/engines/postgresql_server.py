"""Connections to a PostgreSQL server: transactions, and what is said when it is away.

Passwords come from ``PGPASSWORD`` or ``~/.pgpass``.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg.conninfo import conninfo_to_dict
from psycopg.types import TypeInfo

from unibct.errors import UserError, first_line
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
