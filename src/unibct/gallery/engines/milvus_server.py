"""Requests to a Milvus server: collections, pages of rows, and what is said when it is away.

A server that asks for a password gets it from the environment variable ``UNIBCT_MILVUS_TOKEN``.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from unibct.errors import UserError
from unibct.gallery.engines.server import refuse_secret, secret_of_url
from unibct.gallery.rows import LONGEST_ID, LONGEST_LABEL

try:
    import grpc
    from pymilvus import DataType, MilvusClient, MilvusException
except ImportError as error:
    raise UserError("Milvus needs pymilvus: pip install 'unibct[milvus]'") from error

logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)  # its errors are raised as well

Result = TypeVar("Result")
Client: TypeAlias = Any  # pymilvus says little about types
Index: TypeAlias = dict[str, Any]

OWNER_PROPERTY = "unibct.owner"
TOKEN_VARIABLE = "UNIBCT_MILVUS_TOKEN"
FLAT: Index = {"index_type": "FLAT", "metric_type": "IP", "params": {}}
HNSW: Index = {
    "index_type": "HNSW",
    "metric_type": "IP",
    "params": {"M": 16, "efConstruction": 200},
}
_CONNECT_SECONDS = 10
_SECONDS = 120  # for a request
_ROWS_PER_PAGE = 16_384  # what Milvus returns at most
_BYTES_PER_REQUEST = 16 << 20
_BYTES_BESIDE_VECTOR = 2_048  # of an ordinary row
_IDS_PER_FILTER = 1_000
_FIELDS = ["id", "label", "metadata", "step", "superseded", "digest"]
_UNREACHABLE, _NOT_THERE, _NOT_LOADED = 2, 100, 101


class MilvusServer:
    """A connection that is opened when it is needed, and again after a break."""

    def __init__(self, address: str) -> None:
        if not address.startswith(("http://", "https://", "tcp://", "unix:")):
            raise UserError(f"{address} is no address of Milvus; write http://HOST:19530")
        instead = f"set {TOKEN_VARIABLE} to USER:PASSWORD"
        refuse_secret(address, secret_of_url(address), instead)
        self._address = address
        self._client: Client = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def has(self, name: str) -> bool:
        """Return whether there is a collection or alias of this name."""
        return self._call(lambda client: client.has_collection(name, timeout=_SECONDS))

    def behind(self, alias: str) -> str:
        """Return the collection that an alias names; empty if there is no such alias."""
        if not self.has(alias):
            return ""
        return str(self._describe(alias)["collection_name"])

    def descriptions(self, stem: str) -> dict[str, Mapping[str, Any]]:
        """Return the collections whose names begin like this."""
        names = self._call(lambda client: client.list_collections(timeout=_SECONDS))
        return {name: self._describe(name) for name in sorted(names) if name.startswith(stem)}

    def dim(self, name: str) -> int:
        """Return the dimension of a collection's vectors."""
        fields = {field["name"]: field for field in self._describe(name)["fields"]}
        return int(fields["vector"]["params"]["dim"])

    def add_collection(self, name: str, description: str, dim: int) -> None:
        """Make a collection without an index."""
        schema = MilvusClient.create_schema(auto_id=False, description=description)
        properties = {OWNER_PROPERTY: description}  # Milvus Lite keeps no description
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
        schema.add_field("label", DataType.VARCHAR, max_length=6 * LONGEST_LABEL + 2)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field("step", DataType.INT64)
        schema.add_field("superseded", DataType.INT64)
        schema.add_field("digest", DataType.VARCHAR, max_length=64)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        options = {"consistency_level": "Strong", "properties": properties, "timeout": _SECONDS}
        self._call(lambda client: client.create_collection(name, schema=schema, **options))

    def make_ready(self, name: str, index: Index) -> None:
        """Index a collection and load it, unless that is done."""

        def prepare(client: Client) -> None:
            if not client.list_indexes(name):
                params = client.prepare_index_params()
                params.add_index("vector", **index)
                client.create_index(name, params, timeout=None)
            client.load_collection(name, timeout=None)

        self._call(prepare)

    def is_loaded(self, name: str) -> bool:
        """Return whether a collection can be searched."""
        state = self._call(lambda client: client.get_load_state(name, timeout=_SECONDS))
        return str(state["state"]).endswith("Loaded") and "Not" not in str(state["state"])

    def seal(self, name: str) -> None:
        """Let Milvus finish the segments of a collection, so that it indexes them."""
        self._call(lambda client: client.flush(name, timeout=None))

    def drop(self, name: str) -> None:
        """Remove a collection and its aliases; does nothing if it is not there."""
        if not self.has(name):
            return
        for alias in self._describe(name).get("aliases", ()):
            self._call(lambda client: client.drop_alias(alias, timeout=_SECONDS))  # noqa: B023
        self._call(lambda client: client.drop_collection(name, timeout=_SECONDS))

    def point(self, alias: str, name: str, *, replace: bool) -> None:
        """Let an alias name a collection."""

        def change(client: Client) -> None:
            (client.alter_alias if replace else client.create_alias)(name, alias, timeout=_SECONDS)

        self._call(change)

    def upsert(self, name: str, entities: Sequence[dict[str, Any]]) -> None:
        """Write rows."""
        step = self._rows_per_request(len(entities[0]["vector"])) if entities else 1
        for start in range(0, len(entities), step):
            part = list(entities[start : start + step])
            self._call(lambda client: client.upsert(name, part, timeout=_SECONDS))  # noqa: B023

    def delete(self, name: str, ids: Sequence[str]) -> None:
        """Delete rows."""
        for part in _parts(ids):
            condition = _among(part)
            self._call(lambda client: client.delete(name, filter=condition, timeout=_SECONDS))  # noqa: B023

    def read(self, name: str, ids: Sequence[str], *, vectors: bool) -> list[dict[str, Any]]:
        """Return the rows with these ids."""
        pages = self.read_pages(name, ids, 'id > ""', vectors=vectors)
        return [entity for page in pages for entity in page]

    def read_pages(
        self, name: str, ids: Sequence[str], condition: str, *, vectors: bool = True
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield those rows among ids that meet a condition."""
        for part in _parts(ids, self._rows_per_request(self.dim(name))):
            yield self._query(name, f"{_among(part)} and {condition}", vectors, len(part))

    def pages(
        self, name: str, condition: str, *, vectors: bool = True, rows: int = _ROWS_PER_PAGE
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows that meet a condition, in ascending order of ids."""
        limit = min(rows, self._rows_per_request(self.dim(name)))
        last = ""
        while True:
            after = f"id > {json.dumps(last, ensure_ascii=False)} and {condition}"
            page = sorted(self._query(name, after, vectors, limit), key=lambda one: one["id"])
            if not page:
                return
            yield page
            last = page[-1]["id"]

    def count(self, name: str, condition: str) -> int:
        """Return how many rows meet a condition."""
        options = {"filter": condition, "output_fields": ["count(*)"], "timeout": _SECONDS}
        answer = self._reading(name, lambda client: client.query(name, **options))
        return int(answer[0]["count(*)"])

    def search(self, name: str, request: Mapping[str, Any]) -> Any:
        """Return hits for each query of a request."""
        options = {**request, "anns_field": "vector", "consistency_level": "Strong"}
        return self._reading(name, lambda client: client.search(name, **options, timeout=_SECONDS))

    def _query(self, name: str, condition: str, vectors: bool, limit: int) -> list[dict[str, Any]]:
        options = {
            "filter": condition,
            "output_fields": [*_FIELDS, "vector"] if vectors else _FIELDS,
            "limit": limit,
            "consistency_level": "Strong",
            "timeout": _SECONDS,
        }
        return list(self._reading(name, lambda client: client.query(name, **options)))

    def _describe(self, name: str) -> Mapping[str, Any]:
        return self._call(lambda client: client.describe_collection(name, timeout=_SECONDS))

    def _rows_per_request(self, dim: int) -> int:
        size = 4 * dim + _BYTES_BESIDE_VECTOR
        return max(1, min(_ROWS_PER_PAGE, _BYTES_PER_REQUEST // size))

    def _reading(self, name: str, work: Callable[[Client], Result]) -> Result:
        """Read from a collection, and load it first if it is not."""
        try:
            return self._call(work)
        except UserError as error:
            if getattr(error.__cause__, "code", None) != _NOT_LOADED:
                raise
        self.make_ready(name, FLAT)
        return self._call(work)

    def _call(self, work: Callable[[Client], Result]) -> Result:
        """Send a request; if the connection is broken, once more on a new one."""
        for last in (False, True):
            try:
                return work(self._opened())
            except (MilvusException, grpc.RpcError) as error:
                if not _is_unreachable(error):
                    raise UserError(f"Milvus at {self._address}: {_message(error)}") from error
                self.close()
                if last:
                    raise UserError(
                        f"cannot reach Milvus at {self._address}; start the server, or correct the "
                        f"address (a password belongs in {TOKEN_VARIABLE})"
                    ) from error
        raise AssertionError

    def _opened(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = MilvusClient(
                    self._address,
                    token=os.environ.get(TOKEN_VARIABLE, ""),
                    timeout=_CONNECT_SECONDS,
                    dedicated=True,
                    # a server that has come back is reached at once
                    grpc_options={"grpc.use_local_subchannel_pool": 1},
                )
            return self._client


def _is_unreachable(error: Exception) -> bool:
    if isinstance(error, grpc.RpcError):
        return True
    code = getattr(error, "code", None)
    return code == _UNREACHABLE or isinstance(code, grpc.StatusCode)


def _message(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error)
    return text.splitlines()[0] if text else type(error).__name__


def _parts(ids: Sequence[str], most: int = _IDS_PER_FILTER) -> Iterator[Sequence[str]]:
    step = min(most, _IDS_PER_FILTER)
    for start in range(0, len(ids), step):
        yield ids[start : start + step]


def _among(ids: Sequence[str]) -> str:
    return f"id in {json.dumps(list(ids), ensure_ascii=False)}"
