"""What only PostgreSQL does: damaged pages, missing packages, several connections."""

import sys

import psycopg
import pytest

from tests.gallery.conftest import on_one_server, random_vectors, some_rows
from unibct.errors import UserError
from unibct.gallery.engines import Place, Search, open_engine
from unibct.gallery.engines.server import kind_name, lock_number

KIND = "a" * 32


@pytest.fixture
def place(servers, tmp_path):
    return Place(tmp_path, "only_postgresql", servers("postgresql").address)


@pytest.fixture
def filled(place):
    engine = open_engine("postgresql", place)
    engine.create()
    engine.add_kind(KIND, 8)
    engine.write(KIND, some_rows(KIND, ["a0", "a1", "b0"]))
    yield engine
    engine.destroy()
    engine.close()


@pytest.mark.parametrize("missing", ["psycopg", "pgvector"])
def test_missing_packages_are_named(monkeypatch, tmp_path, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if "engines.postgresql" in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"pip install 'unibct\[postgresql\]'"):
        open_engine("postgresql", Place(tmp_path, "g", "postgresql://me@host/db"))


@on_one_server("postgresql")
def test_other_tables_of_the_database_are_left_alone(filled, place):
    with psycopg.connect(place.address, autocommit=True) as connection:
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
        killed.execute(f'UPDATE "{kind_name(place, KIND)}" SET step = 7 WHERE id = %s', ("a0",))
        with psycopg.connect(place.address) as other:
            statement = "SELECT pg_try_advisory_xact_lock(%s)"
            assert other.execute(statement, (lock_number(place),)).fetchone() == (False,)
        assert len(filled.search(KIND, random_vectors(1), Search(5, {}))[0]) == 3
        killed.commit()
    filled.undo(7)
    assert filled.read(KIND, ["a0", "a1"]).ids == ("a1",)


@on_one_server("postgresql")
def test_a_damaged_page_is_a_problem(filled, place, servers):
    with psycopg.connect(place.address, autocommit=True) as connection:
        find = f"SELECT pg_relation_filepath('\"{kind_name(place, KIND)}\"')"
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
