"""A SQLite file that several threads share, with transactions and one-line errors."""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from unibct.errors import UserError

_BUSY_SECONDS = 30


class SqliteFile:
    """One connection to a SQLite file, opened when it is first used.

    It writes with a write-ahead log and ``synchronous=FULL``: what was committed survives a kill
    and a power cut.

    Attributes:
        path: of the file.
        lock: held while the connection is used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

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
        if self._connection is None:
            if not create and not self.path.is_file():
                raise UserError(f"{self.path} is not there: the rows of this gallery are missing")
            database = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            self._connection = database
        return self._connection
