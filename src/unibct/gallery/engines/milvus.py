"""Requests to a Milvus server: collections, pages of rows, and what is said when it is away.

A server that asks for a password gets it from the environment variable ``UNIBCT_MILVUS_TOKEN``.
"""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.engines import (
    Count,
    Found,
    Place,
    Search,
    in_order,
    refuse_secret,
    secret_of_url,
)
from unibct.gallery.rows import (
    LONGEST_ID,
    LONGEST_LABEL,
    NO_STEP,
    GalleryRows,
    Metadata,
    Scalar,
    Where,
)

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
        return _dim_of(self._describe(name))

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


# Milvus: a collection for each kind, exact by a flat index, approximate by a second collection.
#
# Milvus has neither transactions nor updates of a single field: a mark is set by writing its row
# again, and everything may be repeated after a kill. A collection has one index, so ``build_index``
# makes a copy of the rows with an HNSW index beside the flat one, which every later write follows;
# an alias names the copy in use. All reads are strongly consistent.

_MOST_FOUND = 16_384  # rows that Milvus returns at most
_HITS_PER_REQUEST = 20_000
_LONGEST_METADATA = 65_536
_SMALLEST_BEAM, _LARGEST_BEAM = 200, 32_768
_SETTLING_SECONDS = 1.0
_LISTED = (str, int, float)  # types whose values can be given as a list
_MOST_TERMS = 8  # of single values; Milvus refuses hundreds, and Milvus Lite knows no list here
_ANY_ID = 'id > ""'
_NO_ID = 'id == ""'

Entity: TypeAlias = dict[str, Any]


class MilvusEngine:
    """An engine on a Milvus server, see ``Engine``; several threads may use it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = MilvusServer(place.address)
        self._opened = time.monotonic()

    def create(self) -> None:
        """Make an empty collection that shows that the gallery is here."""
        registry = self._place.registry
        if not self._server.has(registry):
            self._server.add_collection(registry, self._owner(""), 2)
        self._place.refuse_rows(self)

    def destroy(self) -> None:
        """Drop the collections of this gallery."""
        for name, description in self._server.descriptions(self._place.stem).items():
            if _owner_of(description).get("gallery") == self._place.name:
                self._server.drop(name)

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def kinds(self) -> dict[str, int]:
        """Return kind -> dimension."""
        stem = self._place.stem
        listed = self._server.descriptions(stem)
        if self._place.registry not in listed:
            raise UserError(f"{self._place.address} has no gallery {self._place.name}")
        main = [listed[name] for name in listed if re.fullmatch("[0-9a-f]{12}", name[len(stem) :])]
        main.sort(key=lambda description: description.get("created_timestamp", 0))
        return {_owner_of(one)["kind"]: _dim_of(one) for one in main}

    def add_kind(self, kind: str, dim: int) -> None:
        """Make a collection with a flat index, and load it."""
        name = self._place.table(kind)
        if not self._server.has(name):
            self._server.add_collection(name, self._owner(kind), dim)
        self._server.make_ready(name, FLAT)

    def drop_kind(self, kind: str) -> None:
        """Drop the collection of a kind and its copies."""
        name = self._place.table(kind)
        for copy in (*_copies(name), name):
            self._server.drop(copy)

    def write(self, kind: str, rows: GalleryRows, *, supersedes: Sequence[str] = ()) -> None:
        """Add or replace rows, and then mark those of other kinds."""
        entities = _entities(rows)
        steps = dict(zip(rows.ids, rows.steps.tolist(), strict=True))
        for name in self._collections(kind):
            self._server.upsert(name, entities)
        for other in supersedes:
            for name in self._collections(other):
                self._mark(name, steps)

    def supersede(self, kind: str, ids: Sequence[str], step: int) -> None:
        """Mark live rows as superseded by a step."""
        for name in self._collections(kind):
            self._mark(name, dict.fromkeys(ids, step))

    def undo(self, step: int) -> None:
        """Remove the marks of a step, then delete its rows, so that a search misses none."""
        names = [name for kind in self.kinds() for name in self._collections(kind)]
        for name in names:
            for page in self._server.pages(name, f"superseded == {step}"):
                self._server.upsert(name, [{**one, "superseded": NO_STEP} for one in page])
        for name in names:
            for page in self._server.pages(name, f"step == {step}", vectors=False):
                self._server.delete(name, [entity["id"] for entity in page])

    def delete(self, kind: str, ids: Sequence[str]) -> None:
        """Delete rows for good."""
        for name in self._collections(kind):
            self._server.delete(name, ids)

    def delete_superseded(self, kind: str) -> int:
        """Delete all superseded rows of a kind for good."""
        deleted = 0
        for name in self._collections(kind):  # the number is that of the last one
            deleted = 0
            for page in self._server.pages(name, f"superseded > {NO_STEP}", vectors=False):
                self._server.delete(name, [entity["id"] for entity in page])
                deleted += len(page)
        return deleted

    def read(self, kind: str, ids: Sequence[str], *, vectors: bool = True) -> GalleryRows:
        """Return the rows with these ids that are there."""
        name = self._known(kind)
        by_id = {one["id"]: one for one in self._server.read(name, ids, vectors=vectors)}
        return _rows([by_id[i] for i in ids if i in by_id], self._server.dim(name), vectors)

    def scan(self, kind: str, *, batch: int = 4096, vectors: bool = True) -> Iterator[GalleryRows]:
        """Yield all rows in ascending order of ids."""
        name = self._known(kind)
        dim = self._server.dim(name)
        for page in self._server.pages(name, _ANY_ID, vectors=vectors, rows=batch):
            yield _rows(page, dim, vectors)

    def count(self, kind: str) -> Count:
        """Count the rows of a kind."""
        name = self._known(kind)
        live = self._server.count(name, f"superseded == {NO_STEP}")
        return Count(self._server.count(name, _ANY_ID), live)

    def has_live(self, kind: str) -> bool:
        """Return whether a kind has a live row."""
        condition = f"superseded == {NO_STEP}"
        return next(self._server.pages(self._known(kind), condition, rows=1), None) is not None

    def search(self, kind: str, queries: NDArray[np.float32], search: Search) -> list[list[Found]]:
        """Return the nearest rows for each query."""
        name = self._place.table(kind)
        k = min(search.k, _MOST_FOUND)
        options: dict[str, Any] = {"metric_type": "IP", "params": {}}
        # With a filter, Milvus finds as little as 0.85 of the nearest rows in the graph.
        if search.approximate and not search.where and self._server.has(_alias(name)):
            name = _alias(name)
            options["params"] = {"ef": min(_LARGEST_BEAM, max(_SMALLEST_BEAM, 4 * k))}
        hit_lists: list[list[Found]] = []
        step = max(1, min(_MOST_FOUND, _HITS_PER_REQUEST // k))
        for start in range(0, len(queries), step):
            request = {
                "data": list(queries[start : start + step]),
                "filter": _condition(search),
                "limit": k,
                "output_fields": ["label", "metadata"],
                "search_params": options,
            }
            answer = self._on(kind, name, request)
            hit_lists += [[_found_row(hit) for hit in hits] for hits in answer]
        return _ranked(hit_lists, k, search.k)

    def build_index(self, kind: str) -> None:
        """Copy the rows into a collection with a graph, then let the alias name it."""
        name = self._known(kind)
        in_use = self._server.behind(_alias(name))
        target = next(copy for copy in _copies(name) if copy != in_use)
        self._server.drop(target)
        self._server.add_collection(target, self._owner(kind), self._server.dim(name))
        for page in self._server.pages(name, _ANY_ID):
            self._server.upsert(target, page)
        self._server.seal(target)
        self._server.make_ready(target, HNSW)
        self._server.point(_alias(name), target, replace=bool(in_use))
        if in_use:
            self._server.drop(in_use)

    def has_index(self, kind: str) -> bool:
        """Return whether a kind has a copy with a graph."""
        return self._server.has(_alias(self._known(kind)))

    def problems(self) -> list[str]:
        """Complete kinds whose making was killed, and return which collections are not loaded."""
        for kind, dim in self.kinds().items():
            self.add_kind(kind, dim)
        names = [name for kind in self.kinds() for name in self._collections(kind)]
        return [f"{name}: not loaded" for name in names if not self._server.is_loaded(name)]

    def _on(self, kind: str, name: str, request: dict[str, Any]) -> Any:
        """Search a collection; one that is not there is named by its kind."""
        try:
            return self._server.search(name, request)
        except UserError:
            self._known(kind)
            raise

    def _known(self, kind: str) -> str:
        """Return the name of the collection of a kind."""
        name = self._place.table(kind)
        if not self._server.has(name):
            raise UserError(f"{self._place.address} has no rows of the kind {kind}")
        return name

    def _collections(self, kind: str) -> list[str]:
        """Return where rows of a kind are written: the copy with a graph, then its collection.

        What is left to write after a kill is read from the collection, so the copy comes first.
        The server may still work for a killed process: the next writer waits a moment for that.
        """
        time.sleep(max(0.0, self._opened + _SETTLING_SECONDS - time.monotonic()))
        name = self._known(kind)
        copy = self._server.behind(_alias(name))
        return [copy, name] if copy else [name]

    def _mark(self, name: str, steps: Mapping[str, int]) -> None:
        """Write the live rows among these ids again, with marks."""
        live = f"superseded == {NO_STEP}"
        for page in self._server.read_pages(name, list(steps), live):
            self._server.upsert(name, [{**one, "superseded": steps[one["id"]]} for one in page])

    def _owner(self, kind: str) -> str:
        """Return the description of a collection: whose it is."""
        return json.dumps({"gallery": self._place.name, "kind": kind})


def _alias(name: str) -> str:
    return f"{name}_graph"


def _copies(name: str) -> tuple[str, str]:
    return f"{name}_graph_1", f"{name}_graph_2"


def _owner_of(description: Mapping[str, Any]) -> dict[str, str]:
    """Return gallery and kind of a collection; nothing if another program made it."""
    try:
        properties = description.get("properties", {})
        owner: Any = json.loads(description["description"] or properties.get(OWNER_PROPERTY, ""))
        return {"gallery": owner["gallery"], "kind": owner["kind"]}
    except (ValueError, KeyError, TypeError):
        return {}


def _dim_of(description: Mapping[str, Any]) -> int:
    fields = {field["name"]: field for field in description["fields"]}
    return int(fields["vector"]["params"]["dim"])


def _entities(rows: GalleryRows) -> list[Entity]:
    """Return rows as Milvus keeps them."""
    for row_id, metadata in zip(rows.ids, rows.metadata, strict=True):
        text = json.dumps(_with_names(metadata), ensure_ascii=False)
        if len(text.encode()) > _LONGEST_METADATA:
            raise UserError(f"row {row_id!r}: Milvus keeps {_LONGEST_METADATA} bytes of metadata")
        if any(isinstance(value, int) and abs(value) >= 1 << 63 for value in metadata.values()):
            raise UserError(f"row {row_id!r}: Milvus keeps whole numbers of 64 bits")
    return [
        {
            "id": rows.ids[place],
            "label": json.dumps(rows.labels[place], ensure_ascii=False),
            "metadata": _with_names(rows.metadata[place]),
            "step": int(rows.steps[place]),
            "superseded": int(rows.superseded[place]),
            "digest": rows.digests[place],
            "vector": rows.vectors[place],
        }
        for place in range(len(rows))
    ]


def _rows(entities: Sequence[Entity], dim: int, with_vectors: bool) -> GalleryRows:
    """Return entities as ``GalleryRows``."""
    vectors = np.empty((len(entities), dim if with_vectors else 0), dtype=np.float32)
    for place, entity in enumerate(entities if with_vectors else ()):
        vectors[place] = entity["vector"]
    return GalleryRows(
        tuple(entity["id"] for entity in entities),
        tuple(json.loads(entity["label"]) for entity in entities),
        tuple(entity["metadata"]["values"] for entity in entities),
        vectors,
        np.array([entity["step"] for entity in entities], dtype=np.int64),
        np.array([entity["superseded"] for entity in entities], dtype=np.int64),
        tuple(entity["digest"] for entity in entities),
    )


def _found_row(hit: Mapping[str, Any]) -> Found:
    entity = hit["entity"]
    metadata = entity["metadata"]["values"]
    return Found(hit["id"], json.loads(entity["label"]), metadata, float(hit["distance"]))


def _ranked(hit_lists: list[list[Found]], k: int, wanted: int) -> list[list[Found]]:
    """Return hits by falling similarity; refuse them if Milvus returned k of more that it has."""
    if k < wanted and any(len(hits) == k for hits in hit_lists):
        raise UserError(f"Milvus returns at most {k:,} rows per query, not {wanted:,}")
    return in_order(hit_lists)


def _condition(search: Search) -> str:
    """Return which rows may be found, as an expression of Milvus."""
    conditions = [] if search.with_superseded else [f"superseded == {NO_STEP}"]
    conditions += _of_metadata(search.where)
    return " and ".join(conditions)


def _of_metadata(where: Where) -> Iterator[str]:
    for key, choices in where.items():
        name = json.dumps(key, ensure_ascii=False)
        either: list[str] = []
        for kind in dict.fromkeys(type(choice) for choice in choices):
            alike = [choice for choice in choices if type(choice) is kind]
            if kind in _LISTED and len(alike) > _MOST_TERMS:
                values = json.dumps(alike, ensure_ascii=False)
                either.append(f'metadata["values"][{name}] in {values}')
            else:
                either += [_equal(name, choice) for choice in dict.fromkeys(alike)]
        yield f"({' or '.join(either) or _NO_ID})"


def _equal(key: str, choice: Scalar) -> str:
    if choice is None:
        return f'not json_contains(metadata["names"], {key})'
    return f'metadata["values"][{key}] == {json.dumps(choice, ensure_ascii=False)}'


def _with_names(metadata: Metadata) -> dict[str, Any]:
    """Return metadata as Milvus keeps it, beside the names of what is not null.

    Releases of Milvus differ in how they compare null and what is not there.
    """
    names = [name for name, value in metadata.items() if value is not None]
    return {"values": metadata, "names": names}
