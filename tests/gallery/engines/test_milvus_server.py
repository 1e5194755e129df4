"""Requests to a real server."""

import sys

import pytest

from tests.gallery.conftest import on_one_server, random_vectors
from unibct.errors import UserError
from unibct.gallery.engines.milvus_server import FLAT, MilvusServer
from unibct.gallery.engines.table import Place, open_engine


def test_a_password_in_the_address_is_refused():
    with pytest.raises(UserError, match="set UNIBCT_MILVUS_TOKEN to USER:PASSWORD") as caught:
        MilvusServer("http://root:hidden@host:19530")
    assert "hidden" not in str(caught.value)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(UserError, match=r"host:19530 is no address of Milvus; write http://"):
        MilvusServer("host:19530")


def test_a_server_that_is_away_is_named():
    with pytest.raises(UserError, match=r"cannot reach Milvus at http://127\.0\.0\.1:1; start"):
        MilvusServer("http://127.0.0.1:1").has("anything")


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
        rows = [
            {
                "id": f"r{i:03}",
                "label": "null",
                "metadata": {},
                "step": 1,
                "superseded": 0,
                "digest": "",
                "vector": vectors[i],
            }
            for i in range(part, 300, 2)
        ]
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
