import resource
import sqlite3
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.gallery.conftest import random_vectors, some_rows
from unibct.errors import UserError
from unibct.gallery.engines import Place, Search, embedded, memory_index
from unibct.gallery.engines.embedded import EmbeddedEngine, SqliteFile
from unibct.gallery.engines.memory_index import MemoryIndex
from unibct.gallery.rows import changed_rows


@pytest.fixture
def file(tmp_path):
    file = SqliteFile(tmp_path / "f.sqlite")
    with file.session(create=True) as database:
        database.execute("CREATE TABLE t (x INTEGER UNIQUE)")
    return file


def insert(file, *numbers):
    with file.transaction() as database:
        for number in numbers:
            database.execute("INSERT INTO t VALUES (?)", (number,))


def numbers(file):
    with file.session() as database:
        return [row[0] for row in database.execute("SELECT x FROM t ORDER BY x")]


def test_a_transaction_lands_whole_or_not_at_all(file):
    insert(file, 1)
    with pytest.raises(UserError, match=r"f\.sqlite: UNIQUE"):
        insert(file, 2, 1)
    assert numbers(file) == [1]


def test_a_full_disk_is_named_and_leaves_the_file_usable(file):
    with file.session() as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UserError, match=r"f\.sqlite: database or disk is full"):
        insert(file, *range(9999))
    with file.session() as database:
        database.execute(f"PRAGMA max_page_count = {pages + 100}")
    insert(file, 1)
    assert numbers(file) == [1]


def test_a_commit_that_fails_leaves_no_open_transaction(file):
    with file.session() as database:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("CREATE TABLE u (y REFERENCES t (x) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(UserError, match=r"f\.sqlite: FOREIGN KEY"), file.transaction() as database:
        database.execute("INSERT INTO u VALUES (5)")
    insert(file, 1)
    assert numbers(file) == [1]


def test_a_snapshot_does_not_see_what_others_write(file):
    with file.snapshot() as database:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (0,)
        insert(SqliteFile(file.path), 1)
        assert database.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert numbers(file) == [1]


def test_threads_take_turns(file):
    def write(start):
        for number in range(start, start + 20):
            insert(file, number)

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers(file)) == 60


def test_a_file_that_another_process_locks_is_named(file, monkeypatch):
    monkeypatch.setattr("unibct.gallery.engines.embedded._BUSY_SECONDS", 0.05)
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    file.close()
    with pytest.raises(UserError, match="another process writes"), file.transaction():
        pass
    other.execute("ROLLBACK")
    insert(file, 7)
    assert numbers(file) == [7]


# What only the embedded engine does: files, other processes, damaged bytes.

KIND = "a" * 32


def embedded_at(folder):
    return EmbeddedEngine(Place(folder, "g"))


def created(folder, *parts):
    engine = embedded_at(folder)
    engine.create()
    engine.add_kind(KIND, parts[0].vectors.shape[1])
    for rows in parts:
        engine.write(KIND, rows)
    return engine


@pytest.fixture
def opened(tmp_path):
    return created(tmp_path, some_rows(KIND, ["a0", "a1", "b0"]))


def test_rows_are_synced_before_a_write_returns(opened):
    with opened._file.session() as database:
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_second_process_sees_what_the_first_one_wrote(opened, tmp_path):
    other = embedded_at(tmp_path)
    query = random_vectors(1, seed=8)
    assert len(other.search(KIND, query, Search(9, {}))[0]) == 3
    opened.write(KIND, some_rows(KIND, ["c0"], seed=8))
    found = other.search(KIND, query, Search(9, {}))[0]
    assert found[0].id == "c0"
    assert len(found) == 4
    opened.delete(KIND, ["c0"])
    assert len(other.search(KIND, query, Search(9, {}))[0]) == 3


def test_a_search_sees_one_state_of_the_rows(opened, tmp_path, monkeypatch):
    described = embedded._described

    def after_a_deletion(*arguments):
        embedded_at(tmp_path).delete(KIND, ["a1"])
        return described(*arguments)

    monkeypatch.setattr(embedded, "_described", after_a_deletion)
    query = random_vectors(1, seed=8)
    assert len(opened.search(KIND, query, Search(9, {}))[0]) == 3
    assert len(opened.search(KIND, query, Search(9, {}))[0]) == 2


def test_a_changed_byte_shows_in_the_digest(opened, tmp_path):
    with sqlite3.connect(tmp_path / "rows.sqlite") as database:
        vector = database.execute("SELECT vector FROM rows WHERE id = 'a1'").fetchone()[0]
        changed = bytes([vector[0] ^ 1]) + vector[1:]
        database.execute("UPDATE rows SET vector = ? WHERE id = 'a1'", (changed,))
    assert changed_rows(KIND, opened.read(KIND, ["a0", "a1", "b0"])) == ["a1"]


def test_a_missing_or_broken_file_is_one_line(opened, tmp_path):
    opened.close()
    with pytest.raises(UserError, match=r"nowhere.rows.sqlite is not there"):
        embedded_at(tmp_path / "nowhere").kinds()
    (tmp_path / "rows.sqlite").write_bytes(b"no database" * 100)
    for leftover in tmp_path.glob("rows.sqlite-*"):
        leftover.unlink()
    with pytest.raises(UserError, match=r"rows.sqlite: file is not a database"):
        embedded_at(tmp_path).kinds()
    assert embedded_at(tmp_path).problems() != []


def test_a_transaction_that_fails_changes_nothing(opened):
    rows = some_rows(KIND, ["z0", "z1"])
    with pytest.raises(TypeError):
        opened.write(KIND, replace(rows, metadata=({}, {"bad": object()})))
    assert opened.count(KIND).rows == 3


def test_the_graph_is_kept_in_a_file_and_a_damaged_one_is_ignored(opened, tmp_path):
    opened.build_index(KIND)
    opened.close()
    assert embedded_at(tmp_path).has_index(KIND)
    graph = next(tmp_path.glob("index-*.faiss"))
    graph.write_bytes(graph.read_bytes()[:-3] + b"abc")
    again = embedded_at(tmp_path)
    assert not again.has_index(KIND)
    found = again.search(KIND, random_vectors(1), Search(3, {}, approximate=True))[0]
    assert len(found) == 3


def compared_one_by_one(engine, monkeypatch):
    """How many rows an approximate search compares beside its graph."""
    counts = []
    nearest = MemoryIndex._nearest

    def counted(self, queries, places, k):
        counts.append(None if places is None else len(places))
        return nearest(self, queries, places, k)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryIndex, "_nearest", counted)
        engine.search(KIND, random_vectors(1), Search(3, {}, approximate=True))
    return counts


def test_another_process_searches_through_the_graph_of_a_changed_gallery_and_a_newer_one(
    opened, tmp_path, monkeypatch
):
    opened.write(KIND, some_rows(KIND, [f"r{i}" for i in range(60)]))
    opened.build_index(KIND)
    before = embedded_at(tmp_path)
    opened.write(KIND, some_rows(KIND, ["late", "later"], seed=7))
    for engine in (opened, embedded_at(tmp_path), before):
        assert compared_one_by_one(engine, monkeypatch) == [2]
    opened.build_index(KIND)
    assert compared_one_by_one(before, monkeypatch) == [0]


def test_the_file_of_a_graph_is_read_once_while_it_is_the_same(opened, monkeypatch):
    opened.build_index(KIND)
    read = []
    digest = memory_index._digest
    monkeypatch.setattr(memory_index, "_digest", lambda path: (read.append(path), digest(path))[1])
    assert [opened.has_index(KIND) for _ in range(3)] == [True, True, True]
    assert len(read) == 1


def test_an_index_for_which_there_is_no_room_is_named(opened, tmp_path):
    opened.write(KIND, some_rows(KIND, [f"r{i}" for i in range(300)]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        message = r"index-1.faiss: .* written: File too large; make room"
        with pytest.raises(UserError, match=message):
            opened.build_index(KIND)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("*index*"))
    opened.build_index(KIND)
    assert opened.has_index(KIND)


def test_vectors_are_in_memory_once_while_no_row_is_superseded(opened):
    query = random_vectors(1)

    def found_ids(with_superseded):
        search = Search(9, {}, with_superseded=with_superseded)
        return sorted(row.id for row in opened.search(KIND, query, search)[0])

    assert found_ids(True) == found_ids(False) == ["a0", "a1", "b0"]
    assert len(opened._indexes) == 1
    opened.supersede(KIND, ["a1"], 2)
    assert (found_ids(True), found_ids(False)) == (["a0", "a1", "b0"], ["a0", "b0"])
    opened.undo(2)
    assert found_ids(True) == found_ids(False) == ["a0", "a1", "b0"]
    assert len(opened._indexes) == 1


def test_similarities_do_not_depend_on_batch_or_order(tmp_path):
    """The same pair of vectors has the same similarity to the bit, wherever it is searched."""
    ids = [f"r{i:03}" for i in range(300)]
    rows = some_rows(KIND, ids, dim=33)
    queries = random_vectors(40, 33, seed=1)
    results = []
    for name, parts in (("one", [range(300)]), ("two", [range(150, 300), range(150)])):
        engine = created(tmp_path / name, *(rows.take(list(part)) for part in parts))
        together = engine.search(KIND, queries, Search(5, {}))
        alone = [engine.search(KIND, queries[i : i + 1], Search(5, {}))[0] for i in range(40)]
        results += [together, alone]
    assert results[0] == results[1] == results[2] == results[3]


def test_rows_that_left_are_cleared_away_and_found_no_more(tmp_path):
    ids = [f"r{i:03}" for i in range(300)]
    rows = some_rows(KIND, ids)
    engine = created(tmp_path, rows)
    query = rows.vectors[:1]
    left = set(ids)
    for start in (0, 10, 100, 250):
        gone = ids[start : start + 45]
        engine.search(KIND, query, Search(5, {}))
        engine.supersede(KIND, gone, 4)
        left -= set(gone)
        scores = {i: float(np.dot(rows.vectors[ids.index(i)], query[0])) for i in left}
        best = sorted(scores, key=lambda i: -scores[i])[:5]
        assert [hit.id for hit in engine.search(KIND, query, Search(5, {}))[0]] == best
