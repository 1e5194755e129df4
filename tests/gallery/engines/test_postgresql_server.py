"""Connections to a real server."""

import threading

import psycopg
import pytest

from tests.gallery.conftest import on_one_server
from unibct.errors import UserError
from unibct.gallery.engines.postgresql_server import PostgresqlServer


@pytest.fixture
def server(servers):
    server = PostgresqlServer(servers("postgresql").address)
    yield server
    server.close()


def own_number(cursor):
    return cursor.execute("SELECT pg_backend_pid()").fetchone()[0]


@pytest.mark.parametrize("address", ["postgresql://me:hidden@host/db", "host=h password=hidden"])
def test_a_password_in_the_address_is_refused(address):
    with pytest.raises(UserError, match=r"set PGPASSWORD or write it to ~/\.pgpass") as caught:
        PostgresqlServer(address)
    assert "hidden" not in str(caught.value)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(UserError, match=r"nonsense: .*; write postgresql://"):
        PostgresqlServer("nonsense")


def test_a_server_that_is_away_is_named(tmp_path):
    address = f"postgresql://me@/db?host={tmp_path}"
    with pytest.raises(UserError, match=r"cannot reach PostgreSQL at .*start the server") as caught:
        PostgresqlServer(address).run(own_number)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@on_one_server("postgresql")
def test_connections_are_used_again_and_replaced_when_they_break(server, servers):
    first = server.run(own_number)
    assert server.run(own_number) == first
    with psycopg.connect(servers("postgresql").address, autocommit=True) as other:
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
