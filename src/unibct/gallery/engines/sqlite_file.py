"""A SQLite file that several threads share, with transactions and one-line errors."""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from unibct.errors import UserError

_BUSY_SECONDS = 30

_Identity: TypeAlias = tuple[int, int]


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
