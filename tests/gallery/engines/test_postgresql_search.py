"""Which plan PostgreSQL takes, and what pgvector cannot index."""

import numpy as np
import psycopg
import pytest
from pgvector import Vector
from pgvector.psycopg import register_vector
from psycopg import sql

from tests.gallery.conftest import random_vectors, some_rows
from unibct.errors import UserError
from unibct.gallery.engines import postgresql_search
from unibct.gallery.engines.engine import Search
from unibct.gallery.engines.postgresql import open_engine
from unibct.gallery.engines.server import kind_name
from unibct.gallery.engines.table import Place

KIND = "a" * 32
pytestmark = pytest.mark.xdist_group("postgresql")


@pytest.fixture
def place(servers, tmp_path):
    return Place(tmp_path, "plans", servers("postgresql").address)


@pytest.fixture
def engine(place):
    engine = open_engine(place)
    engine.create()
    yield engine
    engine.destroy()
    engine.close()


def plan(place, k, where):
    """How PostgreSQL would search; k = 0 means exactly."""
    condition, values = postgresql_search._condition(Search(k or 5, where))
    parts = {"table": sql.Identifier(kind_name(place, KIND)), "condition": condition}
    exact, graph = (
        postgresql_search._exact_search(parts),
        postgresql_search._graph_search(parts, 8),
    )
    with psycopg.connect(place.address) as connection:
        register_vector(connection)
        cursor = connection.cursor()
        postgresql_search._choose_plan(cursor, k)
        given = {**values, "query": Vector(random_vectors(1)[0]), "k": k or 5}
        explained = cursor.execute(sql.SQL("EXPLAIN ") + (graph if k else exact), given)
        return "\n".join(line for (line,) in explained.fetchall())


def test_only_an_approximate_search_uses_the_graph(engine, place):
    ids = [f"r{i:05}" for i in range(3000)]
    engine.add_kind(KIND, 8)
    engine.write(KIND, some_rows(KIND, ids, metadata=[{"n": i % 500} for i in range(3000)]))
    engine.build_index(KIND)
    with psycopg.connect(place.address, autocommit=True) as connection:
        connection.execute(f'ANALYZE "{kind_name(place, KIND)}"')
    for where in ({}, {"n": [3]}):
        assert "_hnsw" in plan(place, 5, where)
        assert "_hnsw" not in plan(place, 0, where)
    assert "Bitmap" in plan(place, 0, {"n": [3]})


def test_a_filter_that_leaves_few_rows_finds_all_of_them(engine):
    ids = [f"r{i:05}" for i in range(3000)]
    rows = some_rows(KIND, ids, metadata=[{"rare": i % 1000 == 7} for i in range(3000)])
    engine.add_kind(KIND, 8)
    engine.write(KIND, rows)
    engine.build_index(KIND)
    search = Search(10, {"rare": [True]}, approximate=True)
    found = engine.search(KIND, random_vectors(1, seed=3), search)[0]
    assert sorted(hit.id for hit in found) == ["r00007", "r01007", "r02007"]


def test_long_vectors_are_indexed_in_half_precision_and_ranked_in_single(engine):
    rows = some_rows(KIND, [f"r{i}" for i in range(50)], dim=2500)
    engine.add_kind(KIND, 2500)
    engine.write(KIND, rows)
    engine.build_index(KIND)
    found = engine.search(KIND, rows.vectors[:3], Search(5, {}, approximate=True))
    assert found == engine.search(KIND, rows.vectors[:3], Search(5, {}))
    np.testing.assert_allclose([hits[0].similarity for hits in found], 1, atol=1e-6)


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
