import sqlite3
import threading

import pytest

from unibct.errors import UserError
from unibct.gallery.engines.sqlite_file import SqliteFile


@pytest.fixture
def file(tmp_path):
    file = SqliteFile(tmp_path / "f.sqlite")
    with file.session(create=True) as database:
        database.execute("CREATE TABLE t (x INTEGER UNIQUE)")
    return file


def numbers(file):
    with file.session() as database:
        return [row[0] for row in database.execute("SELECT x FROM t ORDER BY x")]


def test_a_transaction_lands_whole_or_not_at_all(file):
    with file.transaction() as database:
        database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(UserError, match=r"f\.sqlite: UNIQUE"), file.transaction() as database:
        database.execute("INSERT INTO t VALUES (2)")
        database.execute("INSERT INTO t VALUES (1)")
    assert numbers(file) == [1]


def test_a_full_disk_is_named_and_leaves_the_file_usable(file):
    with file.session() as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
    full = pytest.raises(UserError, match=r"f\.sqlite: database or disk is full")
    with full, file.transaction() as database:
        database.executemany("INSERT INTO t VALUES (?)", ((x,) for x in range(9999)))
    with file.session() as database:
        database.execute(f"PRAGMA max_page_count = {pages + 100}")
    with file.transaction() as database:
        database.execute("INSERT INTO t VALUES (1)")
    assert numbers(file) == [1]


def test_a_commit_that_fails_leaves_no_open_transaction(file):
    with file.session() as database:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("CREATE TABLE u (y REFERENCES t (x) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(UserError, match=r"f\.sqlite: FOREIGN KEY"), file.transaction() as database:
        database.execute("INSERT INTO u VALUES (5)")
    with file.transaction() as database:
        database.execute("INSERT INTO t VALUES (1)")
    assert numbers(file) == [1]


def test_a_snapshot_does_not_see_what_others_write(file):
    with file.snapshot() as database:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with SqliteFile(file.path).transaction() as other:
            other.execute("INSERT INTO t VALUES (1)")
        assert database.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert numbers(file) == [1]


def test_threads_take_turns(file):
    def write(start):
        for x in range(start, start + 20):
            with file.transaction() as database:
                database.execute("INSERT INTO t VALUES (?)", (x,))

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers(file)) == 60


def test_a_file_that_another_process_locks_is_named(file, monkeypatch):
    monkeypatch.setattr("unibct.gallery.engines.sqlite_file._BUSY_SECONDS", 0.05)
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    file.close()
    with pytest.raises(UserError, match="another process writes"), file.transaction():
        pass
    other.execute("ROLLBACK")
    with file.transaction() as database:
        database.execute("INSERT INTO t VALUES (7)")
    assert numbers(file) == [7]
