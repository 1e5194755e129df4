"""Prototypes of embeddings that do not fit in memory, some classes at a time.

Each thread reads the rows of consecutive classes into its buffer and computes them, on its own:
while one waits for the disk, another computes. Where the storage has the rows grouped by class,
reading is sequential. In any other order they are gathered; and if the stores are too large to be
kept by the system while that goes on, one sequential pass first writes them anew, grouped coarsely,
into a temporary file.
"""

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from unibct.arrays import checked_labels, require_contiguous_labels, to_numpy
from unibct.embeddings.rows import Rows
from unibct.errors import UserError
from unibct.progress import Progress, Silent
from unibct.prototypes.class_prototypes import check_settings, grouped_prototypes

BUFFER = 256 << 20

Source: TypeAlias = Rows | NDArray[Any]
T = TypeVar("T")


def refined_prototypes(
    old: Any,
    labels: Any,
    *,
    new: Any = None,
    kind: str = "structural",
    tau: float = 0.05,
    lam: float = 0.9,
    drop: float = 0.1,
    classes: range | None = None,
    buffer: int = BUFFER,
    scratch: Path | None = None,
    spill: bool | None = None,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """``class_prototypes`` of embeddings of any number, with a bounded amount of memory.

    Args:
        old: (images, dim) the old model's embeddings: the ``vectors`` of a store, or an array.
        labels: (images,) integers 0…C-1, each of them in use.
        new: (images, dim′) the new model's embeddings of the same images, likewise.
        kind: ``centroid``, ``drop`` or ``structural``.
        tau: temperature of the graph's softmax.
        lam: share of the walk that follows the graph, 0 ≤ lam < 1.
        drop: share of a class's images that ``drop`` leaves out.
        classes: the classes to make, for one of several processes; all by default.
        buffer: bytes of embeddings in memory at a time; one class must be whole, however large.
        scratch: where a temporary file may go; the system's place for them by default.
        spill: write the rows grouped into a temporary file first. By default that is done if they
            are not grouped by class and take more than half of the available memory.
        progress: told of each image.

    Returns:
        (classes, dim) float32, L2-normalised, in label order. The parts that several processes
        make for ranges of ``classes`` are those of the whole.
    """
    check_settings(kind, tau, lam, drop)
    sources: list[Source] = [_source(old, "old")]
    if new is not None and kind == "structural":
        sources.append(_source(new, "new"))
        if len(sources[1]) != len(sources[0]):
            raise UserError(
                f"new has {len(sources[1])} rows but old has {len(sources[0])}: give both for each "
                "image"
            )
    label_array = checked_labels(labels, len(sources[0]))
    sizes = np.bincount(label_array, minlength=require_contiguous_labels(label_array))
    classes = range(len(sizes)) if classes is None else classes
    found = np.empty((len(classes), sources[0].shape[1]), dtype=np.float32)
    total = int(sizes[classes.start : classes.stop].sum())

    def work(block: Block) -> tuple[range, NDArray[np.float32]]:
        tensors = [torch.from_numpy(part) for part in block.parts]
        prototypes = grouped_prototypes(
            tensors[0],
            sizes[block.classes.start : block.classes.stop],
            new=tensors[-1],
            order=block.order,
            kind=kind,
            tau=tau,
            lam=lam,
            drop=drop,
        )
        return block.classes, prototypes.float().numpy()

    with (progress or Silent()).task("refinement", total) as advance:
        for done, prototypes in map_classes(
            work,
            sources,
            label_array,
            classes=classes,
            buffer=buffer,
            scratch=scratch,
            spill=spill,
        ):
            found[done.start - classes.start : done.stop - classes.start] = prototypes
            advance(int(sizes[done.start : done.stop].sum()))
    finite = np.isfinite(found).all(axis=1)
    if not finite.all():
        bad = classes.start + int(finite.argmin())
        raise UserError(
            f"class {bad} has NaN or infinite values in its rows, first row "
            f"{int((label_array == bad).argmax())}; embed the images again"
        )
    return found


@dataclass(frozen=True)
class Block:
    """The rows of consecutive classes.

    Attributes:
        classes: which.
        parts: for each store its rows (rows, dim); the thread's next block overwrites them.
        order: the rows of the first class, then of the second, …; None if they stand so.
    """

    classes: range
    parts: list[NDArray[Any]]
    order: NDArray[np.int64] | None


def map_classes(
    work: Callable[[Block], T],
    sources: Sequence[Source],
    labels: NDArray[np.int64],
    *,
    classes: range | None = None,
    buffer: int = BUFFER,
    scratch: Path | None = None,
    spill: bool | None = None,
) -> Iterator[T]:
    """Do something with all rows of some classes, one block of classes after the other.

    As many blocks are worked on at once as torch has threads, each by a single thread: classes
    are small, and threads that wait for each other in every step lose much where they share cores.

    Args:
        work: gets a block; what it gives comes back in the order of the classes.
        sources: stores or arrays with a row for each label.
        labels: (rows,) of 0…C-1.
        classes: the wanted ones; all by default.
        buffer: bytes that the blocks take together, unless a single class is larger.
        scratch: where a temporary file may go.
        spill: see ``refined_prototypes``.
    """
    sizes = np.bincount(labels)
    classes = range(len(sizes)) if classes is None else classes
    threads = torch.get_num_threads()
    row_bytes = sum(source.shape[1] * _stored_dtype(source).itemsize for source in sources)
    cuts = _cuts(sizes, classes, buffer // threads // row_bytes)
    grouped = bool((np.diff(labels) >= 0).all())
    plan = _grouped_plan(labels, cuts) if grouped else _scattered_plan(labels, cuts)
    if not plan:
        return
    if spill is None:
        spill = len(labels) * row_bytes > _available_memory() // 2
    with ExitStack() as stack:
        if spill and not grouped:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="unibct-", dir=scratch))
            sources, plan = _spilled(sources, labels, plan, Path(folder), buffer // threads)
        local = threading.local()

        def read_and_work(piece: _Piece) -> T:
            return work(_read_block(sources, piece, local))

        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, threads)
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        waiting: deque[Future[T]] = deque()
        for piece in plan:
            waiting.append(pool.submit(read_and_work, piece))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True)
class _Piece:
    """A block that is still to be read: its rows in ascending order, and their order by class."""

    classes: range
    rows: slice | NDArray[np.int64]
    order: NDArray[np.int64] | None

    def __len__(self) -> int:
        if isinstance(self.rows, slice):
            return self.rows.stop - self.rows.start
        return len(self.rows)


def _cuts(sizes: NDArray[np.int64], classes: range, rows: int) -> list[range]:
    """Consecutive classes with up to ``rows`` rows together, and at least one class."""
    ends = np.cumsum(sizes[classes.start : classes.stop])
    cuts: list[range] = []
    begin = 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + rows, side="right")))
        cuts.append(range(classes.start + begin, classes.start + end))
        begin = end
    return cuts


def _grouped_plan(labels: NDArray[np.int64], cuts: list[range]) -> list[_Piece]:
    plan: list[_Piece] = []
    for cut in cuts:
        start, stop = np.searchsorted(labels, [cut.start, cut.stop]).tolist()
        plan.append(_Piece(cut, slice(start, stop), None))
    return plan


def _scattered_plan(labels: NDArray[np.int64], cuts: list[range]) -> list[_Piece]:
    bounds = np.array([*(cut.start for cut in cuts), *(cut.stop for cut in cuts[-1:])])
    block_of = np.searchsorted(bounds, labels, side="right") - 1
    order = np.argsort(block_of, kind="stable")  # within a block the rows ascend
    firsts = np.searchsorted(block_of, np.arange(len(bounds)), sorter=order).tolist()
    plan: list[_Piece] = []
    for cut, (first, last) in zip(cuts, pairwise(firsts), strict=True):
        rows = order[first:last]
        plan.append(_Piece(cut, rows, np.argsort(labels[rows], kind="stable")))
    return plan


def _read_block(sources: Sequence[Source], piece: _Piece, local: threading.local) -> Block:
    """Read a block into the thread's own memory, which grows to the largest block."""
    spaces: list[NDArray[Any]] = getattr(local, "spaces", [])
    if not spaces or len(spaces[0]) < len(piece):
        local.spaces = spaces = [
            np.empty((len(piece), source.shape[1]), _stored_dtype(source)) for source in sources
        ]
    parts = [space[: len(piece)] for space in spaces]
    for source, part in zip(sources, parts, strict=True):
        _read(source, piece.rows, part)
    return Block(piece.classes, parts, piece.order)


def _spilled(
    sources: Sequence[Source],
    labels: NDArray[np.int64],
    plan: list[_Piece],
    folder: Path,
    buffer: int,
) -> tuple[list[Source], list[_Piece]]:
    """The same rows in files where each block stands together, after one sequential pass."""
    firsts = np.cumsum([0, *map(len, plan)])
    block_of = np.full(len(labels), -1, dtype=np.int32)
    for number, piece in enumerate(plan):
        block_of[piece.rows] = number
    spilled: list[Source] = []
    for number, source in enumerate(sources):
        dim, dtype = source.shape[1], _stored_dtype(source)
        path = folder / f"{number}.rows"
        step = max(1, buffer // (dim * dtype.itemsize))
        with path.open("wb") as file:
            place = firsts.copy()
            for start in range(0, len(labels), step):
                piece_of = block_of[start : start + step]
                rows = np.empty((len(piece_of), dim), dtype)
                _read(source, slice(start, start + len(piece_of)), rows)
                order = np.argsort(piece_of, kind="stable")
                cuts = np.searchsorted(piece_of, np.arange(len(plan) + 1), sorter=order).tolist()
                for block, (begin, end) in enumerate(pairwise(cuts)):
                    if begin < end:
                        file.seek(int(place[block]) * dim * dtype.itemsize)
                        file.write(rows[order[begin:end]].data)
                        place[block] += end - begin
        shape = (int(firsts[-1]), dim)
        spilled.append(np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=shape)))
    pieces = [
        _Piece(piece.classes, slice(first, last), piece.order)
        for piece, (first, last) in zip(plan, pairwise(firsts.tolist()), strict=True)
    ]
    return spilled, pieces


def _source(value: Any, name: str) -> Source:
    source = value if isinstance(value, Rows) else to_numpy(value)
    if source.ndim != 2 or source.shape[1] == 0:
        raise UserError(f"{name} must have the shape (rows, dim), not {source.shape}")
    if _stored_dtype(source).name not in ("float16", "float32", "float64"):
        raise UserError(f"{name} must be floating point, not {source.dtype}")
    return source


def _stored_dtype(source: Source) -> np.dtype[Any]:
    return source.stored_dtype if isinstance(source, Rows) else source.dtype


def _read(source: Source, rows: slice | NDArray[np.int64], out: NDArray[Any]) -> None:
    if isinstance(source, Rows):
        source.read_stored(rows, out)
    elif isinstance(rows, slice):
        out[...] = source[rows]
    else:  # with "clip" NumPy needs no second buffer; nothing is out of bounds
        np.take(source, rows, axis=0, out=out, mode="clip")


def _available_memory() -> int:
    """Bytes that the system could give without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 8 << 30
