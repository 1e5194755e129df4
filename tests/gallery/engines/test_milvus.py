"""Requests to a real server."""

import sys
from itertools import chain

import numpy as np
import pytest

from tests.gallery.conftest import on_one_server, random_vectors, some_rows
from unibct.errors import UserError
from unibct.gallery.engines import Place, Search, open_engine
from unibct.gallery.engines.milvus import FLAT, MilvusEngine, MilvusServer, _condition


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://root:hidden@host:19530", "set UNIBCT_MILVUS_TOKEN to USER:PASSWORD"),
        ("host:19530", "host:19530 is no address of Milvus; write http://"),
        ("http://127.0.0.1:1", r"cannot reach Milvus at http://127\.0\.0\.1:1; start"),
    ],
)
def test_an_address_with_a_password_or_without_a_server_is_refused(address, message):
    with pytest.raises(UserError, match=message) as caught:
        MilvusServer(address).has("anything")
    assert "hidden" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    for name in [name for name in sys.modules if "engines.milvus" in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"pip install 'unibct\[milvus\]'"):
        open_engine("milvus", Place(tmp_path, "g", "http://host:19530"))


@on_one_server("milvus")
def test_pages_are_in_order_across_segments_and_a_released_collection_is_loaded(servers):
    server = MilvusServer(servers("milvus").address)
    server.add_collection("pages", "{}", 8)
    vectors = random_vectors(300)
    for part in range(2):  # each becomes a segment of its own
        same = {"label": "null", "metadata": {}, "step": 1, "superseded": 0, "digest": ""}
        rows = [same | {"id": f"r{i:03}", "vector": vectors[i]} for i in range(part, 300, 2)]
        server.upsert("pages", rows)
        server.upsert("pages", rows[:20])
        server.seal("pages")
    server.make_ready("pages", FLAT)
    server._call(lambda client: client.release_collection("pages"))
    assert not server.is_loaded("pages")
    pages = list(server.pages("pages", "step == 1", rows=41))
    assert [one["id"] for page in pages for one in page] == [f"r{i:03}" for i in range(300)]
    assert server.is_loaded("pages")
    assert server.count("pages", "step == 1") == 300
    server.drop("pages")
    server.drop("pages")
    assert not server.has("pages")
    server.close()


# What only Milvus does: limits of its rows, and the copy with a graph.

KIND = "a" * 32


def test_filters_become_expressions_and_many_values_a_list():
    assert _condition(Search(1, {}, with_superseded=True)) == ""
    assert _condition(Search(1, {"a": ["x", True], "b": [None]})) == (
        'superseded == 0 and (metadata["values"]["a"] == "x" or metadata["values"]["a"] == true) '
        'and (not json_contains(metadata["names"], "b"))'
    )
    assert _condition(Search(1, {"a": []})) == 'superseded == 0 and (id == "")'
    where = {"a": [*range(9), "x"], "b": [0.5] * 9}
    assert _condition(Search(1, where, with_superseded=True)) == (
        '(metadata["values"]["a"] in [0, 1, 2, 3, 4, 5, 6, 7, 8] or metadata["values"]["a"] == "x")'
        f' and (metadata["values"]["b"] in {[0.5] * 9})'
    )


class FullServer:
    """A server whose collection has more rows than it returns."""

    def __init__(self, address):
        pass

    def search(self, name, request):
        entity = {"label": '"a"', "metadata": {"values": {}}}
        hits = [{"id": f"{i}", "distance": 0.5, "entity": entity} for i in range(request["limit"])]
        return [hits[: 7 if query[0] else None] for query in request["data"]]


def test_more_rows_than_milvus_returns_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("unibct.gallery.engines.milvus.MilvusServer", FullServer)
    monkeypatch.setattr("unibct.gallery.engines.milvus._MOST_FOUND", 9)
    engine = MilvusEngine(Place(tmp_path, "full", "nowhere"))
    assert len(engine.search(KIND, np.zeros((1, 2), np.float32), Search(9, {}))[0]) == 9
    assert len(engine.search(KIND, np.ones((1, 2), np.float32), Search(99, {}))[0]) == 7
    with pytest.raises(UserError, match="at most 9 rows per query, not 10"):
        engine.search(KIND, np.zeros((1, 2), np.float32), Search(10, {}))


class KilledServer:
    """A server with a copy of each collection, whose client is killed after the first change."""

    def __init__(self, address):
        self.changed = []

    def has(self, name):
        return True

    def behind(self, alias):
        return f"{alias}_1"

    def read_pages(self, name, ids, condition):
        return [[{"id": row_id} for row_id in ids]]

    def upsert(self, name, entities):
        self.changed.append(name)
        raise KeyboardInterrupt

    delete = upsert


@pytest.mark.parametrize(
    "change",
    [
        lambda engine: engine.write(KIND, some_rows(KIND, ["a0"])),
        lambda engine: engine.supersede(KIND, ["a0"], 3),
        lambda engine: engine.delete(KIND, ["a0"]),
    ],
)
def test_after_a_kill_the_copy_is_never_behind_its_collection(tmp_path, monkeypatch, change):
    monkeypatch.setattr("unibct.gallery.engines.milvus.MilvusServer", KilledServer)
    monkeypatch.setattr("unibct.gallery.engines.milvus._SETTLING_SECONDS", 0)
    place = Place(tmp_path, "killed", "nowhere")
    engine = MilvusEngine(place)
    with pytest.raises(KeyboardInterrupt):
        change(engine)
    assert engine._server.changed == [f"{place.table(KIND)}_graph_1"]


@on_one_server("milvus")
def test_the_copy_with_a_graph_follows_and_goes_with_its_kind(servers, tmp_path):
    place = Place(tmp_path, "only_milvus", servers("milvus").address)
    engine = MilvusEngine(place)
    engine.create()
    engine.add_kind(KIND, 8)
    rows = some_rows(KIND, [f"r{i}" for i in range(50)])
    for bad, message in (({"n": 1 << 63}, "64 bits"), ({"t": "x" * 70_000}, "bytes of metadata")):
        with pytest.raises(UserError, match=f"row 'r1': .*{message}"):
            engine.write(KIND, some_rows(KIND, ["r0", "r1"], metadata=[{}, bad]))
    engine.write(KIND, rows)
    engine.build_index(KIND)
    names = engine._collections(KIND)
    assert len(names) == 2
    engine.write(KIND, some_rows(KIND, ["new"], step=2, seed=5))
    engine.supersede(KIND, ["r0", "r1"], 3)
    engine.delete(KIND, ["r2"])
    pages = [chain.from_iterable(engine._server.pages(name, 'id > ""')) for name in names]
    states = [{one["id"]: one["superseded"] for one in rows} for rows in pages]
    assert states[0] == states[1]
    assert (len(states[0]), states[0]["r0"], "r2" in states[0]) == (50, 3, False)
    search = Search(50, {}, approximate=True)
    found = {hit.id for hit in engine.search(KIND, random_vectors(1), search)[0]}
    assert found == states[0].keys() - {"r0", "r1"}
    engine.undo(3)
    engine.undo(2)
    assert [engine._server.count(n, "superseded == 0") for n in names] == [49, 49]
    engine.drop_kind(KIND)
    left = engine._server.descriptions(place.stem)
    assert not [name for name in left if name.startswith(place.table(KIND))]
    engine.destroy()
    with pytest.raises(UserError, match="has no gallery only_milvus"):
        engine.kinds()
    engine.close()
