"""Milvus: a collection for each kind, exact by a flat index, approximate by a second collection.

Milvus has neither transactions nor updates of a single field: a mark is set by writing its row
again, and everything may be repeated after a kill. A collection has one index, so ``build_index``
makes a copy of the rows with an HNSW index beside the flat one, which every later write follows;
an alias names the copy in use. All reads are strongly consistent.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.engines.engine import Count, Found, Search
from unibct.gallery.engines.milvus_server import FLAT, HNSW, OWNER_PROPERTY, MilvusServer
from unibct.gallery.engines.server import kind_name, name_stem, registry_name
from unibct.gallery.engines.table import Place
from unibct.gallery.rows import NO_STEP, GalleryRows, Metadata, Scalar, Where

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


def open_engine(place: Place) -> "MilvusEngine":
    """Return the engine; nothing is written before ``create``."""
    return MilvusEngine(place)


class MilvusEngine:
    """An engine on a Milvus server, see ``Engine``; several threads may use it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = MilvusServer(place.address)
        self._opened = time.monotonic()

    def create(self) -> None:
        """Make an empty collection that shows that the gallery is here."""
        registry = registry_name(self._place)
        if not self._server.has(registry):
            self._server.add_collection(registry, self._owner(""), 2)
        if any(self.count(kind).rows for kind in self.kinds()):
            raise UserError(
                f"{self._place.address} has rows of a gallery {self._place.name} already; "
                "choose another name or database"
            )

    def destroy(self) -> None:
        """Drop the collections of this gallery."""
        for name, description in self._server.descriptions(name_stem(self._place)).items():
            if _owner_of(description).get("gallery") == self._place.name:
                self._server.drop(name)

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def kinds(self) -> dict[str, int]:
        """Return kind -> dimension."""
        stem = name_stem(self._place)
        listed = self._server.descriptions(stem)
        if registry_name(self._place) not in listed:
            raise UserError(f"{self._place.address} has no gallery {self._place.name}")
        main = [listed[name] for name in listed if re.fullmatch("[0-9a-f]{12}", name[len(stem) :])]
        main.sort(key=lambda description: description.get("created_timestamp", 0))
        return {_owner_of(one)["kind"]: _dim_of(one) for one in main}

    def add_kind(self, kind: str, dim: int) -> None:
        """Make a collection with a flat index, and load it."""
        name = kind_name(self._place, kind)
        if not self._server.has(name):
            self._server.add_collection(name, self._owner(kind), dim)
        self._server.make_ready(name, FLAT)

    def drop_kind(self, kind: str) -> None:
        """Drop the collection of a kind and its copies."""
        name = kind_name(self._place, kind)
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
        name = kind_name(self._place, kind)
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
        name = kind_name(self._place, kind)
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
    return [sorted(hits, key=lambda hit: (-hit.similarity, hit.id)) for hits in hit_lists]


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
