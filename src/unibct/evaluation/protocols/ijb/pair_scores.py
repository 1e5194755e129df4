"""The scores of a list of template pairs."""

from collections.abc import Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Ints, checked_embeddings, checked_labels, require_same_dim, to_numpy
from unibct.distributed.cpus import usable_cpus
from unibct.errors import UserError

Rows: TypeAlias = NDArray[np.integer[Any]]
Floats32: TypeAlias = NDArray[np.float32]

_PRODUCT_ENTRIES = 40_000_000  # largest number of scores in a block's matrix product
_PAIRS_AT_ONCE = 1 << 18
_GATHERED_AT_ONCE = 1 << 10
_PRODUCT_GAIN = 64  # a score from a matrix product is this many times cheaper than a gathered one


def pair_scores(first: Any, second: Any, first_rows: Any, second_rows: Any) -> Floats32:
    """Return the dot products of ``first[first_rows]`` and ``second[second_rows]``.

    The pair lists of the protocols contain a large share of all combinations of templates. So we
    multiply the two matrices, a block of rows at a time, and look the scores up: that is far
    cheaper than to gather the rows of each pair. Only blocks with few pairs are gathered.

    Args:
        first: (templates, dim).
        second: (templates′, dim).
        first_rows: (pairs,) rows of ``first``.
        second_rows: (pairs,) rows of ``second``.

    Returns:
        (pairs,).
    """
    first = checked_embeddings(first, "first").astype(np.float32, copy=False)
    second = checked_embeddings(second, "second").astype(np.float32, copy=False)
    require_same_dim(first, "first", second, "second")
    first_rows = _checked_rows(first_rows, len(first), "first_rows")
    second_rows = _checked_rows(second_rows, len(second), "second_rows")
    if len(first_rows) != len(second_rows):
        raise UserError(
            f"first_rows has {len(first_rows)} entries but second_rows has {len(second_rows)}"
        )
    with ThreadPoolExecutor(usable_cpus()) as threads:
        return _scores(first, second, first_rows, second_rows, threads)


def _scores(
    first: Floats32, second: Floats32, first_rows: Rows, second_rows: Rows, threads: Executor
) -> Floats32:
    used_seconds, column_of = _used_rows(second_rows, len(second), threads)
    columns = second[used_seconds]
    height = max(1, _PRODUCT_ENTRIES // max(1, len(columns)))
    # Where the scores of each row of ``first`` begin in the flattened product of its block.
    row_start = np.empty(len(first), dtype=np.int64)
    product = np.empty((min(height, len(first)), len(columns)), dtype=np.float32)
    scores = np.empty(len(first_rows), dtype=np.float32)

    def look_up(pairs: slice | Ints) -> None:
        cells = row_start.take(first_rows[pairs]) + column_of.take(second_rows[pairs])
        scores[pairs] = product.take(cells)

    def gather(pairs: slice | Ints) -> None:
        rows = first[first_rows[pairs]], second[second_rows[pairs]]
        scores[pairs] = np.einsum("ij,ij->i", *rows)

    for rows, pairs in _blocks(first_rows, len(first), height, threads):
        if len(pairs) * _PRODUCT_GAIN >= len(rows) * len(columns):
            np.matmul(first[rows], columns.T, out=product[: len(rows)])
            row_start[rows] = np.arange(len(rows)) * len(columns)
            list(threads.map(look_up, _parts(pairs, _PAIRS_AT_ONCE)))
        else:
            list(threads.map(gather, _parts(pairs, _GATHERED_AT_ONCE)))
    return scores


def _checked_rows(rows: Any, limit: int, name: str) -> Rows:
    array = to_numpy(rows)
    if array.dtype != np.int32 or array.ndim != 1:  # int32 saves memory
        array = checked_labels(array, name=name)
    if len(array) and (array.min() < 0 or array.max() >= limit):
        outside = (array < 0) | (array >= limit)
        raise UserError(
            f"{name} has {int(array[outside.argmax()])} in pair {int(outside.argmax())}, "
            f"but there are {limit} templates"
        )
    return array


def _parts(pairs: range | Ints, size: int) -> Generator[slice | Ints]:
    """Divide pairs into short parts, so that a part's data stays in the processor's cache."""
    for begin in range(0, len(pairs), size):
        part = pairs[begin : begin + size]
        # Indexing with a slice copies nothing.
        yield slice(part.start, part.stop) if isinstance(part, range) else part


def _used_rows(rows: Rows, limit: int, threads: Executor) -> tuple[Ints, Ints]:
    """Return the rows that occur, and (limit,) the place of each row among them."""

    def counts(part: slice | Ints) -> Ints:
        return np.bincount(rows[part], minlength=limit)

    occurs = np.zeros(limit, dtype=bool)
    for count in threads.map(counts, _parts(range(len(rows)), _PAIRS_AT_ONCE)):
        occurs |= count > 0
    return np.flatnonzero(occurs), np.cumsum(occurs) - 1


def _blocks(
    rows: Rows, limit: int, height: int, threads: Executor
) -> Generator[tuple[Rows, range | Ints]]:
    """Yield blocks of ``height`` different rows, each with the indices of its pairs.

    The indices are a range if equal rows are next to each other in the list of pairs.

    Args:
        rows: (pairs,) the row of each pair.
        limit: how many rows there are.
        height: rows per block; the last block may have fewer.
        threads: count the rows that occur.
    """
    if not len(rows):
        return
    starts = np.concatenate([[0], np.flatnonzero(rows[1:] != rows[:-1]) + 1])
    if len(starts) <= limit and len(used := rows[starts]) == len(np.unique(used)):
        ends = [*starts[height::height].tolist(), len(rows)]
        pairs = range(len(rows))
    else:
        used, place = _used_rows(rows, limit, threads)
        dtype = np.int32 if len(used) > height << 16 else np.uint16  # 16 bits are sorted faster
        block = (place // height).astype(dtype)[rows]
        pairs = np.argsort(block, kind="stable")
        ends = np.cumsum(np.bincount(block)).tolist()
    begin = 0
    for number, end in enumerate(ends):
        yield used[number * height : (number + 1) * height], pairs[begin:end]
        begin = end
