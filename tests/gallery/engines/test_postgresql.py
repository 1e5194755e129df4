"""What only PostgreSQL does: connections, plans, damaged pages, missing packages."""

import sys
import threading

import numpy as np
import psycopg
import pytest
from pgvector import Vector
from pgvector.psycopg import register_vector
from psycopg import sql

from tests.gallery.conftest import on_one_server, random_vectors, some_rows
from unibct.errors import UserError
from unibct.gallery.engines import Place, Search, open_engine, postgresql
from unibct.gallery.engines.postgresql import PostgresqlServer, lock_number

KIND = "a" * 32


@pytest.fixture
def place(servers, tmp_path):
    return Place(tmp_path, "only_postgresql", servers("postgresql").address)


@pytest.fixture
def engine(place):
    engine = open_engine("postgresql", place)
    engine.create()
    yield engine
    engine.destroy()
    engine.close()


@pytest.fixture
def filled(engine):
    engine.add_kind(KIND, 8)
    engine.write(KIND, some_rows(KIND, ["a0", "a1", "b0"]))
    return engine


@pytest.mark.parametrize("missing", ["psycopg", "pgvector"])
def test_missing_packages_are_named(monkeypatch, tmp_path, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if "engines.postgresql" in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"pip install 'unibct\[postgresql\]'"):
        open_engine("postgresql", Place(tmp_path, "g", "postgresql://me@host/db"))


@on_one_server("postgresql")
def test_other_tables_of_the_database_are_left_alone(filled, place):
    with autocommit(place.address) as connection:
        connection.execute("CREATE TABLE unibct_only_postgresql_theirs (x int)")
        filled.destroy()
        connection.execute("DROP TABLE unibct_only_postgresql_theirs")
    with pytest.raises(UserError, match="has no gallery only_postgresql"):
        filled.kinds()


@on_one_server("postgresql")
def test_a_writer_waits_for_one_whose_process_was_killed(filled, place):
    """The server may still work for it; its rows would appear after they were looked for."""
    with psycopg.connect(place.address) as killed:
        killed.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(place),))
        killed.execute(f'UPDATE "{place.table(KIND)}" SET step = 7 WHERE id = %s', ("a0",))
        with psycopg.connect(place.address) as other:
            statement = "SELECT pg_try_advisory_xact_lock(%s)"
            assert other.execute(statement, (lock_number(place),)).fetchone() == (False,)
        assert len(filled.search(KIND, random_vectors(1), Search(5, {}))[0]) == 3
        killed.commit()
    filled.undo(7)
    assert filled.read(KIND, ["a0", "a1"]).ids == ("a1",)


@on_one_server("postgresql")
def test_a_damaged_page_is_a_problem(filled, place, servers):
    with autocommit(place.address) as connection:
        find = f"SELECT pg_relation_filepath('\"{place.table(KIND)}\"')"
        row = connection.execute(find).fetchone()
        assert row is not None
        connection.execute("CHECKPOINT")
    assert filled.problems() == []
    server = servers("postgresql")
    server.stop("fast")  # after a crash the server would restore the page from its log
    path = server.data / row[0]
    content = bytearray(path.read_bytes())
    content[8000] ^= 1
    path.write_bytes(content)
    server.start()
    assert any("invalid page" in line for line in filled.problems())


@pytest.fixture
def server(servers):
    server = PostgresqlServer(servers("postgresql").address)
    yield server
    server.close()


def autocommit(address):
    """A connection of another client, beside those of the engine."""
    return psycopg.connect(address, autocommit=True)


def own_number(cursor):
    return cursor.execute("SELECT pg_backend_pid()").fetchone()[0]


@pytest.mark.parametrize("address", ["postgresql://me:hidden@host/db", "host=h password=hidden"])
def test_a_password_in_the_address_is_refused(address):
    with pytest.raises(UserError, match=r"set PGPASSWORD or write it to ~/\.pgpass") as caught:
        PostgresqlServer(address)
    assert "hidden" not in str(caught.value)


def test_an_address_that_is_none_is_refused_and_a_server_that_is_away_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nonsense: .*; write postgresql://"):
        PostgresqlServer("nonsense")
    address = f"postgresql://me@/db?host={tmp_path}"
    with pytest.raises(UserError, match=r"cannot reach PostgreSQL at .*start the server") as caught:
        PostgresqlServer(address).run(own_number)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@on_one_server("postgresql")
def test_connections_are_used_again_and_replaced_when_they_break(server, servers):
    first = server.run(own_number)
    assert server.run(own_number) == first
    with autocommit(servers("postgresql").address) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (first,))
    assert server.run(own_number) != first


@on_one_server("postgresql")
def test_a_transaction_that_fails_leaves_nothing(server):
    server.run(lambda cursor: cursor.execute("CREATE TABLE kept (x int UNIQUE)"))

    def twice(cursor):
        cursor.execute("INSERT INTO kept VALUES (1)")
        cursor.execute("INSERT INTO kept VALUES (1)")

    with pytest.raises(UserError, match="duplicate key"):
        server.run(twice)
    with pytest.raises(ZeroDivisionError):
        server.run(lambda cursor: (cursor.execute("INSERT INTO kept VALUES (2)"), 1 / 0))
    assert server.run(lambda cursor: cursor.execute("SELECT x FROM kept").fetchall()) == []
    server.run(lambda cursor: cursor.execute("DROP TABLE kept"))


@on_one_server("postgresql")
def test_threads_do_not_share_transactions(server):
    both = threading.Barrier(2, timeout=20)
    numbers = []

    def work(cursor):
        both.wait()
        numbers.append(own_number(cursor))

    threads = [threading.Thread(target=server.run, args=(work,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 2


MANY = [f"r{i:05}" for i in range(3000)]


def indexed(engine, rows):
    engine.add_kind(KIND, rows.vectors.shape[1])
    engine.write(KIND, rows)
    engine.build_index(KIND)


def plan(place, k, where):
    """How PostgreSQL would search; k = 0 means exactly."""
    condition, values = postgresql._condition(Search(k or 5, where))
    parts = {"table": sql.Identifier(place.table(KIND)), "condition": condition}
    search = postgresql._graph_search(parts, 8) if k else postgresql._exact_search(parts)
    with psycopg.connect(place.address) as connection:
        register_vector(connection)
        cursor = connection.cursor()
        postgresql._choose_plan(cursor, k)
        given = {**values, "query": Vector(random_vectors(1)[0]), "k": k or 5}
        explained = cursor.execute(sql.SQL("EXPLAIN ") + search, given)
        return "\n".join(line for (line,) in explained.fetchall())


@on_one_server("postgresql")
def test_only_an_approximate_search_uses_the_graph(engine, place):
    indexed(engine, some_rows(KIND, MANY, metadata=[{"n": i % 500} for i in range(3000)]))
    with autocommit(place.address) as connection:
        connection.execute(f'ANALYZE "{place.table(KIND)}"')
    for where in ({}, {"n": [3]}):
        assert "_hnsw" in plan(place, 5, where)
        assert "_hnsw" not in plan(place, 0, where)
    assert "Bitmap" in plan(place, 0, {"n": [3]})


@on_one_server("postgresql")
def test_a_filter_that_leaves_few_rows_finds_all_of_them(engine):
    metadata = [{"rare": i % 1000 == 7} for i in range(3000)]
    indexed(engine, some_rows(KIND, MANY, metadata=metadata))
    search = Search(10, {"rare": [True]}, approximate=True)
    found = engine.search(KIND, random_vectors(1, seed=3), search)[0]
    assert sorted(hit.id for hit in found) == ["r00007", "r01007", "r02007"]


@on_one_server("postgresql")
def test_long_vectors_are_indexed_in_half_precision_and_ranked_in_single(engine):
    rows = some_rows(KIND, [f"r{i}" for i in range(50)], dim=2500)
    indexed(engine, rows)
    found = engine.search(KIND, rows.vectors[:3], Search(5, {}, approximate=True))
    assert found == engine.search(KIND, rows.vectors[:3], Search(5, {}))
    np.testing.assert_allclose([hits[0].similarity for hits in found], 1, atol=1e-6)


@on_one_server("postgresql")
def test_vectors_that_pgvector_cannot_index_or_keep_are_refused(engine):
    engine.add_kind(KIND, 4001)
    engine.write(KIND, some_rows(KIND, ["a", "b"], dim=4001))
    with pytest.raises(UserError, match=r"cannot index 4001 numbers a row.*exact search works"):
        engine.build_index(KIND)
    assert not engine.has_index(KIND)
    search = Search(5, {}, approximate=True)
    assert len(engine.search(KIND, random_vectors(1, 4001), search)[0]) == 2
    with pytest.raises(UserError, match="at most 16000 numbers a row, not 16001"):
        engine.add_kind("b" * 32, 16001)
    assert list(engine.kinds()) == [KIND]
