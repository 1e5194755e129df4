"""Rows of stores that do not fit in memory, read some classes at a time.

Each thread reads the rows of consecutive classes into its own buffer and works on them: while one
waits for the disk, another computes. If a store has its rows grouped by class, reading is
sequential; otherwise the rows are gathered. If in that case the stores are too large for the
system's file cache, one sequential pass first writes the rows to a temporary file, block by block.
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

from unibct.embeddings.store import Rows

Source: TypeAlias = Rows | NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class MemoryLimits:
    """How much memory and disk the reading of stores may use."""

    # Bytes of embeddings in memory at a time. A single class is always read whole, even if it is
    # larger.
    buffer_bytes: int = 256 << 20
    # Where a temporary file may be written; by default the system's place.
    scratch_folder: Path | None = None
    # Whether to write the rows, grouped, to a temporary file first. By default that is done if they
    # are not grouped by class and take more than half of the available memory.
    spill: bool | None = None


@dataclass(frozen=True)
class Block:
    """The rows of consecutive classes, in memory."""

    classes: range  # the classes
    # The rows (rows, dim) of each source; the thread's next block overwrites them.
    parts: list[NDArray[Any]]
    # The rows of the first class, then of the second, …; None if they are in that order.
    order: NDArray[np.int64] | None


def map_classes(
    work: Callable[[Block], T],
    sources: Sequence[Source],
    labels: NDArray[np.int64],
    *,
    classes: range | None = None,
    memory: MemoryLimits | None = None,
) -> Iterator[T]:
    """Call a function with all rows of some classes, block by block.

    As many blocks are worked on at once as torch has threads, each by a single thread: classes
    are small, and threads that wait for each other in every step are slow where they share cores.

    Args:
        work: takes a block; its results are yielded in the order of the classes.
        sources: stores or arrays with a row for each label.
        labels: (rows,) integers 0…C-1.
        classes: the classes to read; all by default.
        memory: limits of memory and disk.
    """
    memory = memory or MemoryLimits()
    sizes = np.bincount(labels)
    classes = range(len(sizes)) if classes is None else classes
    threads = torch.get_num_threads()
    thread_bytes = memory.buffer_bytes // threads
    row_bytes = sum(source.shape[1] * stored_dtype(source).itemsize for source in sources)
    cuts = _cut_classes(sizes, classes, thread_bytes // row_bytes)
    grouped = bool((np.diff(labels) >= 0).all())
    plan = _grouped_plan(labels, cuts) if grouped else _scattered_plan(labels, cuts)
    if not plan:
        return
    spill = memory.spill
    if spill is None:
        spill = len(labels) * row_bytes > _available_memory() // 2
    with ExitStack() as stack:
        if spill and not grouped:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="unibct-", dir=memory.scratch_folder)
            )
            sources = [
                _spill(source, plan, len(labels), Path(folder) / f"{number}.rows", thread_bytes)
                for number, source in enumerate(sources)
            ]
            firsts = np.cumsum([0, *map(len, plan)]).tolist()  # of the same blocks in these files
            plan = [
                _PlannedBlock(planned.classes, slice(first, last), planned.order)
                for planned, (first, last) in zip(plan, pairwise(firsts), strict=True)
            ]
        yield from _map_in_threads(work, sources, plan, threads)


@dataclass(frozen=True)
class _PlannedBlock:
    """A block that is not read yet: its rows in ascending order, and their order by class."""

    classes: range
    rows: slice | NDArray[np.int64]
    order: NDArray[np.int64] | None

    def __len__(self) -> int:
        if isinstance(self.rows, slice):
            return self.rows.stop - self.rows.start
        return len(self.rows)


def _map_in_threads(
    work: Callable[[Block], T],
    sources: Sequence[Source],
    plan: list[_PlannedBlock],
    threads: int,
) -> Iterator[T]:
    """Read and work on blocks in threads; torch itself uses one thread meanwhile."""
    local = threading.local()

    def read_and_work(planned: _PlannedBlock) -> T:
        return work(_read_block(sources, planned, local))

    with ExitStack() as stack:
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, threads)
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        pending: deque[Future[T]] = deque()
        for planned in plan:
            pending.append(pool.submit(read_and_work, planned))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _cut_classes(sizes: NDArray[np.int64], classes: range, rows: int) -> list[range]:
    """Cut classes into ranges of up to ``rows`` rows, each of at least one class."""
    ends = np.cumsum(sizes[classes.start : classes.stop])
    cuts: list[range] = []
    begin = 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + rows, side="right")))
        cuts.append(range(classes.start + begin, classes.start + end))
        begin = end
    return cuts


def _grouped_plan(labels: NDArray[np.int64], cuts: list[range]) -> list[_PlannedBlock]:
    """Plan the blocks of rows that are grouped by class."""
    plan: list[_PlannedBlock] = []
    for cut in cuts:
        start, stop = np.searchsorted(labels, [cut.start, cut.stop]).tolist()
        plan.append(_PlannedBlock(cut, slice(start, stop), None))
    return plan


def _scattered_plan(labels: NDArray[np.int64], cuts: list[range]) -> list[_PlannedBlock]:
    """Plan the blocks of rows in any order."""
    bounds = np.array([*(cut.start for cut in cuts), *(cut.stop for cut in cuts[-1:])])
    block_of_row = np.searchsorted(bounds, labels, side="right") - 1
    order = np.argsort(block_of_row, kind="stable")  # within a block the rows ascend
    firsts = np.searchsorted(block_of_row, np.arange(len(bounds)), sorter=order).tolist()
    plan: list[_PlannedBlock] = []
    for cut, (first, last) in zip(cuts, pairwise(firsts), strict=True):
        rows = order[first:last]
        plan.append(_PlannedBlock(cut, rows, np.argsort(labels[rows], kind="stable")))
    return plan


def _read_block(sources: Sequence[Source], planned: _PlannedBlock, local: threading.local) -> Block:
    """Read a block into the thread's own buffers, which grow to the largest block."""
    buffers: list[NDArray[Any]] = getattr(local, "buffers", [])
    if not buffers or len(buffers[0]) < len(planned):
        local.buffers = buffers = [
            np.empty((len(planned), source.shape[1]), stored_dtype(source)) for source in sources
        ]
    parts = [buffer[: len(planned)] for buffer in buffers]
    for source, part in zip(sources, parts, strict=True):
        _read(source, planned.rows, part)
    return Block(planned.classes, parts, planned.order)


def _spill(
    source: Source, plan: list[_PlannedBlock], rows: int, path: Path, buffer_bytes: int
) -> NDArray[Any]:
    """Write a source's ``rows`` rows to a file, block by block, in one sequential pass.

    ``buffer_bytes`` are read at a time. The result is the mapped file, (rows of all blocks, dim).
    """
    block_of_row = np.full(rows, -1, dtype=np.int32)
    for number, planned in enumerate(plan):
        block_of_row[planned.rows] = number
    firsts = np.cumsum([0, *map(len, plan)])
    next_row = firsts.copy()  # of each block, in the file
    dim, dtype = source.shape[1], stored_dtype(source)
    step = max(1, buffer_bytes // (dim * dtype.itemsize))
    with path.open("wb") as file:
        for start in range(0, rows, step):
            chunk_blocks = block_of_row[start : start + step]
            chunk = np.empty((len(chunk_blocks), dim), dtype)
            _read(source, slice(start, start + len(chunk)), chunk)
            order = np.argsort(chunk_blocks, kind="stable")
            cuts = np.searchsorted(chunk_blocks, np.arange(len(plan) + 1), sorter=order).tolist()
            for block, (begin, end) in enumerate(pairwise(cuts)):
                if begin < end:
                    file.seek(int(next_row[block]) * dim * dtype.itemsize)
                    file.write(chunk[order[begin:end]].data)
                    next_row[block] += end - begin
    shape = (int(firsts[-1]), dim)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=shape))


def stored_dtype(source: Source) -> np.dtype[Any]:
    """Return the type in which a source's rows are stored, in the byte order of this machine."""
    return source.stored_dtype if isinstance(source, Rows) else source.dtype.newbyteorder("=")


def _read(source: Source, rows: slice | NDArray[np.int64], out: NDArray[Any]) -> None:
    """Read rows into ``out`` (rows, dim)."""
    if isinstance(source, Rows):
        source.read_stored(rows, out)
    elif isinstance(rows, slice):
        out[...] = source[rows]
    else:  # with "clip" NumPy needs no second buffer; nothing is out of bounds
        np.take(source, rows, axis=0, out=out, mode="clip")


def _available_memory() -> int:
    """Return how many bytes the system could give without swapping."""
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
