"""The vectors of one kind in memory, searched by faiss: all of them, or through a graph.

A graph is a cache: it is kept in a file, can be made again at any time, and stays usable while
rows change, because rows that changed after it was built are searched one by one.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.files import atomic_file

_SLACK = 64  # rows that have left are skipped in the results; more than that are cleared away
_ROWS_PER_FETCH = 4096
_LINKS, _BUILD_WIDTH, _SEARCH_WIDTH = 32, 80, 96  # of the graph: recall@10 above 0.99


_Stamp: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Changes:
    """What changed in the database since a memory index followed it last."""

    clock: int  # the number of the last change
    deleted: Sequence[int]  # numbers of deleted rows
    count: int  # how many rows were written or marked
    cursor: Any  # gives (number, superseded, vector, change) of those, by rising number


class MemoryIndex:
    """Vectors with their row numbers, by rising number."""

    def __init__(self, dim: int, graph_file: Path, with_superseded: bool) -> None:
        self.change = 0  # the database's last change that it has followed
        self._with_superseded = with_superseded
        self._graph_file = graph_file
        self._graph: Any = None
        self._graph_numbers: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._graph_change = -1
        self._graph_stamp: _Stamp | None = None
        self._vectors = np.empty((0, dim), dtype=np.float32)
        self._numbers = np.empty(0, dtype=np.int64)
        self._changed = np.empty(0, dtype=np.int64)  # the change that brought each row
        self._gone = np.empty(0, dtype=bool)
        self._room: dict[str, NDArray[Any]] = {}  # what these are the first rows of

    def __len__(self) -> int:
        return len(self._numbers) - int(self._gone.sum())

    def follow(self, changes: Changes) -> None:
        """Take over what has changed in the database."""
        start = len(self._numbers)
        self._gone[self._places(np.array(changes.deleted, dtype=np.int64))] = True
        numbers = np.empty(changes.count, dtype=np.int64)
        changed = np.empty(changes.count, dtype=np.int64)
        vectors = np.empty((changes.count, self._vectors.shape[1]), dtype=np.float32)
        count = 0
        while part := changes.cursor.fetchmany(_ROWS_PER_FETCH):
            part_numbers = np.array([row[0] for row in part], dtype=np.int64)
            self._gone[self._places(part_numbers)] = True  # its earlier state
            stays = [self._with_superseded or row[1] == 0 for row in part]
            blobs = b"".join(row[2] for row, stay in zip(part, stays, strict=True) if stay)
            end = count + sum(stays)
            try:
                new = np.frombuffer(blobs, dtype="<f4").reshape(end - count, vectors.shape[1])
            except ValueError as error:
                raise UserError(f"a row among {part_numbers[0]}… is damaged: {error}") from error
            vectors[count:end], numbers[count:end] = new, part_numbers[stays]
            changed[count:end] = np.array([row[3] for row in part], dtype=np.int64)[stays]
            count = end
        self._vectors = _appended(self._room, "vectors", self._vectors, vectors[:count])
        self._numbers = _appended(self._room, "numbers", self._numbers, numbers[:count])
        self._changed = _appended(self._room, "changed", self._changed, changed[:count])
        self._gone = _appended(self._room, "gone", self._gone, np.zeros(count, dtype=bool))
        self._put_in_order(start)
        self.change = changes.clock

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.int64] | None,
        *,
        approximate: bool,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return the numbers of the ``k`` nearest rows of each query, and their similarities.

        The queries are (queries, dim) of length 1. ``allowed`` are the numbers of the rows to
        search; None for all. The graph is used if there is one and all rows are allowed.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if self._gone.sum() > _SLACK:
            self._clear_away()  # before the search: from here on, no row changes its place
        if allowed is not None:
            places = self._places(np.sort(allowed))
            nearest_places = self._nearest(queries, places[~self._gone[places]], k)
        elif approximate and self.has_graph:
            nearest_places = self._through_graph(queries, k)
        else:
            nearest_places = self._nearest(queries, None, k)
        return _scored(queries, self._vectors, self._numbers, nearest_places, k)

    @property
    def has_graph(self) -> bool:
        """Whether there is a graph, in memory or in its file. It has no superseded rows."""
        if self._with_superseded:
            return False
        self._load_graph()
        return self._graph is not None

    def build_graph(self) -> None:
        """Build the graph of all rows, and keep it in its file."""
        self._clear_away()
        graph = _faiss().IndexHNSWFlat(
            self._vectors.shape[1], _LINKS, _faiss().METRIC_INNER_PRODUCT
        )
        graph.hnsw.efConstruction = _BUILD_WIDTH
        graph.add(self._vectors)
        graph.hnsw.efSearch = _SEARCH_WIDTH
        self._graph, self._graph_numbers, self._graph_change = graph, self._numbers, self.change
        with atomic_file(self._graph_file) as temporary:
            try:
                _faiss().write_index(graph, str(temporary))
            except RuntimeError as error:
                reason = str(error).rpartition("(")[2].rstrip(")")
                raise UserError(
                    f"{self._graph_file}: the index cannot be written: {reason}; make room on the "
                    "disk, and run unibct gallery index"
                ) from error
            digest = _digest(temporary)
        with atomic_file(_numbers_file(self._graph_file)) as temporary, temporary.open("wb") as out:
            np.savez(out, numbers=self._numbers, change=self.change, digest=np.array(digest))
        self._graph_stamp = _stamp(_numbers_file(self._graph_file))

    def _load_graph(self) -> None:
        """Load the graph from its file, if it is another one; one that does not fit is ignored."""
        stamp = _stamp(_numbers_file(self._graph_file))
        if stamp is None or stamp == self._graph_stamp:
            return
        saved = saved_graph(self._graph_file)
        if saved is None or saved[1] > self.change:
            return
        self._graph = _faiss().read_index(str(self._graph_file))
        (self._graph_numbers, self._graph_change), self._graph_stamp = saved, stamp

    def _places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where those of the rising numbers are that are here."""
        places = np.searchsorted(self._numbers, numbers)
        places = np.minimum(places, max(len(self._numbers) - 1, 0))
        if not len(self._numbers):
            return places[:0]
        return places[self._numbers[places] == numbers]

    def _put_in_order(self, start: int) -> None:
        """Keep the numbers rising after rows were added at ``start``."""
        tail = self._numbers[start:]
        if start and len(tail) and tail[0] <= self._numbers[start - 1]:
            self._clear_away()
            order = np.argsort(self._numbers, kind="stable")
            self._take(order)

    def _clear_away(self) -> None:
        if self._gone.any():
            self._take(np.flatnonzero(~self._gone))

    def _take(self, places: NDArray[np.int64]) -> None:
        self._numbers, self._vectors = self._numbers[places], self._vectors[places]
        self._changed, self._gone = self._changed[places], self._gone[places]
        self._room.clear()

    def _nearest(
        self, queries: NDArray[np.float32], places: NDArray[np.int64] | None, k: int
    ) -> list[NDArray[np.int64]]:
        """Return the places of the nearest rows of each query."""
        if places is None:
            vectors, fetched = self._vectors, k + int(self._gone.sum())
        else:
            vectors, fetched = self._vectors[places], k
        if not len(vectors) or not len(queries):
            return [np.empty(0, dtype=np.int64) for _ in queries]
        fetched = min(fetched, len(vectors))
        _, nearest = _faiss().knn(queries, vectors, fetched, _faiss().METRIC_INNER_PRODUCT)
        nearest = nearest if places is None else places[nearest]
        return [row[~self._gone[row]][:k] for row in nearest]

    def _through_graph(self, queries: NDArray[np.float32], k: int) -> list[NDArray[np.int64]]:
        """Return the places of the rows that the graph finds, and of the nearest changed rows."""
        _, graph_rows = self._graph.search(
            queries, min(2 * k + 16, max(len(self._graph_numbers), 1))
        )
        changed = np.flatnonzero(~self._gone & (self._changed > self._graph_change))
        nearest_changed = self._nearest(queries, changed, k)
        result: list[NDArray[np.int64]] = []
        for row, extra in zip(graph_rows, nearest_changed, strict=True):
            places = self._places(np.sort(self._graph_numbers[row[row >= 0]]))
            usable = ~self._gone[places] & (self._changed[places] <= self._graph_change)
            result.append(np.concatenate([places[usable], extra]))
        short = [i for i, row in enumerate(result) if len(row) < min(k, len(self))]
        exact = self._nearest(queries[short], None, k) if short else []
        for i, row in zip(short, exact, strict=True):
            result[i] = row
        return result


def _scored(
    queries: NDArray[np.float32],
    vectors: NDArray[np.float32],
    numbers: NDArray[np.int64],
    nearest_places: list[NDArray[np.int64]],
    k: int,
) -> tuple[list[list[int]], list[list[float]]]:
    """Return numbers and similarities; a similarity depends on nothing but its two vectors."""
    cuts = np.cumsum([0, *map(len, nearest_places)]).tolist()
    places = np.concatenate(nearest_places) if nearest_places else np.empty(0, dtype=np.int64)
    rows = np.repeat(np.arange(len(nearest_places)), [len(row) for row in nearest_places])
    similarities = np.einsum("ij,ij->i", queries[rows], vectors[places], dtype=np.float64).astype(
        np.float32
    )
    best_numbers: list[list[int]] = []
    values: list[list[float]] = []
    for start, end in pairwise(cuts):
        best = np.argsort(-similarities[start:end], kind="stable")[:k] + start
        best_numbers.append(numbers[places[best]].tolist())
        values.append(similarities[best].tolist())
    return best_numbers, values


def _appended(
    all_room: dict[str, NDArray[Any]], name: str, rows: NDArray[Any], added: NDArray[Any]
) -> NDArray[Any]:
    """Return rows with others after them; their room grows by half, so copies are rare."""
    if not len(added):
        return rows
    if not len(rows):
        all_room[name] = added
        return added
    end, room = len(rows) + len(added), all_room.get(name, rows)
    if end > len(room):
        room = np.empty((max(end, len(room) * 3 // 2), *rows.shape[1:]), dtype=rows.dtype)
        room[: len(rows)] = rows
        all_room[name] = room
    room[len(rows) : end] = added
    return room[:end]


def saved_graph(graph_file: Path) -> tuple[NDArray[np.int64], int] | None:
    """Return the row numbers and the change of a graph in a file; None if it is not whole."""
    numbers_file = _numbers_file(graph_file)
    if not (graph_file.is_file() and numbers_file.is_file()):
        return None
    try:
        with np.load(numbers_file, allow_pickle=False) as saved:
            numbers, change, digest = saved["numbers"], int(saved["change"]), saved["digest"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    is_whole = str(digest) == _known_digest(graph_file, _stamp(graph_file))
    return (numbers, change) if is_whole else None


def graph_problems(files: Iterable[Path]) -> list[str]:
    """Return what is wrong with the graphs that these files belong to, one line each."""
    return [
        f"{graph} is damaged or not whole: search --approximate searches exactly without it; "
        "unibct gallery index builds it again"
        for graph in sorted({path.with_suffix(".faiss") for path in files})
        if saved_graph(graph) is None
    ]


def remove_graph(graph_file: Path) -> None:
    """Remove the files of a graph."""
    graph_file.unlink(missing_ok=True)
    _numbers_file(graph_file).unlink(missing_ok=True)


def _numbers_file(graph_file: Path) -> Path:
    return graph_file.with_suffix(".npz")


def _stamp(path: Path) -> _Stamp | None:
    """Return what changes when a file is replaced; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=64)
def _known_digest(path: Path, _: _Stamp | None) -> str:
    """Return the digest of a file with this stamp: a graph of gigabytes is read once, not often."""
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _faiss() -> Any:
    return import_module("faiss")  # when it is used: it takes a third of a second
