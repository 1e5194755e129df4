"""1:1 verification: the scores of a list of pairs."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import checked_embeddings, checked_labels, require_same_dim, to_numpy
from unibct.errors import UserError
from unibct.metrics import Floats, Roc, ThresholdRule, roc_curve, tar_at_far

Ints: TypeAlias = NDArray[np.int64]

_PRODUCT_ENTRIES = 10_000_000  # scores of a block's combinations
_PAIRS_AT_ONCE = 1 << 16
_GATHERED_AT_ONCE = 1 << 10
_PRODUCT_GAIN = 64  # a score costs so many times less in a product than by gathered rows


@dataclass(frozen=True)
class VerificationTest:
    """1:1: the scores of all pairs, the impostors' and genuine ones apart."""

    genuine: Floats
    impostor: Floats

    def tars(self, fars: Iterable[float], *, rule: ThresholdRule = "strict") -> dict[float, float]:
        """TAR at each FAR."""
        return tar_at_far(self.genuine, self.impostor, fars, rule=rule)

    def roc(self) -> Roc:
        """The whole curve."""
        return roc_curve(self.genuine, self.impostor)


def pair_scores(first: Any, second: Any, first_rows: Any, second_rows: Any) -> NDArray[np.float32]:
    """(pairs,) dot products of ``first[first_rows]`` and ``second[second_rows]``.

    The pairs of a protocol cover much of all combinations of their templates, so the product of
    the two matrices, a block of rows at a time, is far cheaper than gathered rows; these are
    left for blocks with few pairs.

    Args:
        first: (templates, dim).
        second: (templates′, dim).
        first_rows: (pairs,) rows of ``first``.
        second_rows: (pairs,) rows of ``second``.
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
    used, place = _used(first_rows, len(first))
    columns, column_place = _used(second_rows, len(second))
    others = second[columns]
    height = max(1, min(len(used), _PRODUCT_ENTRIES // max(1, len(columns))))
    row_cell = place % height * len(columns)
    product = np.empty((height, len(columns)), dtype=np.float32)
    scores = np.empty(len(first_rows), dtype=np.float32)
    for block, pairs in _blocks(place // height, first_rows):
        rows = used[block * height : (block + 1) * height]
        dense = len(pairs) * _PRODUCT_GAIN >= len(rows) * len(columns)
        if dense:
            np.matmul(first[rows], others.T, out=product[: len(rows)])
        size = _PAIRS_AT_ONCE if dense else _GATHERED_AT_ONCE
        for begin in range(0, len(pairs), size):
            part = pairs[begin : begin + size]
            if isinstance(part, range):
                part = slice(part.start, part.stop)  # a view instead of a gather
            row, column = first_rows[part], second_rows[part]
            if dense:
                scores[part] = product.ravel()[row_cell[row] + column_place[column]]
            else:
                scores[part] = np.einsum("ij,ij->i", first[row], second[column])
    return scores


def _checked_rows(rows: Any, limit: int, name: str) -> NDArray[np.integer[Any]]:
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


def _parts(length: int) -> list[slice]:
    """Parts so short that what is made of them stays in the processor's cache."""
    return [slice(i, i + _PAIRS_AT_ONCE) for i in range(0, length, _PAIRS_AT_ONCE)]


def _used(rows: NDArray[np.integer[Any]], limit: int) -> tuple[Ints, Ints]:
    """The rows that occur, and the place of each row among them."""
    occurs = np.zeros(limit, dtype=bool)
    for part in _parts(len(rows)):
        occurs[rows[part]] = True
    return np.flatnonzero(occurs), np.cumsum(occurs) - 1


def _blocks(block_of: Ints, rows: NDArray[np.integer[Any]]) -> Generator[tuple[int, range | Ints]]:
    """Each block of rows that has pairs, and its pairs; a range where they stand together."""
    if not len(rows):
        return
    kind = np.int32 if block_of[-1] >= 1 << 16 else np.uint16
    block = np.empty(len(rows), dtype=kind)
    for part in _parts(len(rows)):
        block[part] = block_of[rows[part]]
    grouped = bool((block[1:] >= block[:-1]).all())
    order = None if grouped else np.argsort(block, kind="stable")
    numbers = np.arange(int(block.max()) + 1, dtype=kind)
    ends = np.searchsorted(block, numbers, side="right", sorter=order)
    start = 0
    for number, end in enumerate(ends.tolist()):
        if end > start:
            yield number, range(start, end) if order is None else order[start:end]
        start = end
