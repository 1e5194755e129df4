"""The vectors of an embeddings folder as an array that is read from disk when it is used."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.embeddings.layout import Shard, map_array, vectors_file


class Rows:
    """A store's vectors as a read-only (rows, dim) array of float32.

    Shards are memory-mapped when they are first used. Indexing takes slices and integer arrays,
    in any order and with repetitions, and returns arrays in memory; float16 is widened to float32.
    ``numpy.asarray`` returns all rows.

    Attributes:
        shape: (rows, dim).
        stored_dtype: the type on disk, float32 or float16.
    """

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, folder: Path, shards: Sequence[Shard], dim: int, stored_dtype: str) -> None:
        self.stored_dtype = np.dtype(stored_dtype)
        self._folder = folder
        self._starts = np.array([0, *accumulate(shard.rows for shard in shards)], dtype=np.int64)
        self._mapped_shards: list[NDArray[Any] | None] = [None] * len(shards)
        self.shape = (int(self._starts[-1]), dim)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        if not isinstance(key, slice) and np.ndim(key) == 0:
            return self[[int(key)]][0]
        return self.read_stored(key).astype(np.float32, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if len(self._mapped_shards) == 1 and self.stored_dtype == self.dtype and not copy:
            return self._shard(0).astype(dtype or self.dtype, copy=False)
        return self[:].astype(dtype or self.dtype, copy=False)

    def read_stored(self, key: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read some rows in the type they have on disk.

        Args:
            key: a slice, a sequence of row numbers, or a mask with one bool per row.
            out: (rows, dim) array of ``stored_dtype`` to fill; a new array by default.
        """
        if isinstance(key, slice) and key.indices(len(self))[2] == 1:
            start, stop, _ = key.indices(len(self))
            return self._read_range(start, max(start, stop), out)
        rows = np.arange(len(self))[key] if isinstance(key, slice) else self._row_numbers(key)
        if len(rows) and bool((np.diff(rows) == 1).all()):
            return self._read_range(int(rows[0]), int(rows[-1]) + 1, out)
        return self._gather(rows, out)

    def _row_numbers(self, key: Any) -> NDArray[np.int64]:
        """Return the row numbers, from 0 up, that an index of any kind selects."""
        rows = np.asarray(key)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {rows.shape} for {len(self)} rows")
            return np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
            raise IndexError(f"rows are taken by a slice or a list of integers, not {key!r}")
        rows = rows.astype(np.int64, copy=False)
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"row {rows[np.abs(rows).argmax()]} of {len(self)}")
        return np.where(rows < 0, rows + len(self), rows) if rows.size and rows.min() < 0 else rows

    def _read_range(self, start: int, stop: int, out: NDArray[Any] | None) -> NDArray[Any]:
        """Read consecutive rows."""
        out = self._output(stop - start, out)
        for number, (first, last) in enumerate(pairwise(self._starts.tolist())):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                out[begin - start : end - start] = self._shard(number)[begin - first : end - first]
        return out

    def _gather(self, rows: NDArray[np.int64], out: NDArray[Any] | None) -> NDArray[Any]:
        """Read rows in any order; from each shard in ascending order, which disks do fastest."""
        out = self._output(len(rows), out)
        ascending = bool((np.diff(rows) >= 0).all())
        order = None if ascending else np.argsort(rows, kind="stable")
        rows = rows if order is None else rows[order]
        cuts = np.searchsorted(rows, self._starts).tolist()
        for number, (begin, end) in enumerate(pairwise(cuts)):
            if begin == end:
                continue
            shard, shard_rows = self._shard(number), rows[begin:end] - self._starts[number]
            if order is None:  # with "clip" NumPy needs no second buffer; nothing is out of bounds
                np.take(shard, shard_rows, axis=0, out=out[begin:end], mode="clip")
            else:
                out[order[begin:end]] = np.take(shard, shard_rows, axis=0)
        return out

    def _output(self, rows: int, out: NDArray[Any] | None) -> NDArray[Any]:
        if out is None:
            return np.empty((rows, self.shape[1]), dtype=self.stored_dtype)
        assert out.shape == (rows, self.shape[1])
        assert out.dtype == self.stored_dtype
        return out

    def _shard(self, number: int) -> NDArray[Any]:
        """Return a shard's vectors, mapped into memory on first use."""
        shard = self._mapped_shards[number]
        if shard is None:
            path = self._folder / vectors_file(number)
            rows = int(self._starts[number + 1] - self._starts[number])
            shard = map_array(path, (rows, self.shape[1]), self.stored_dtype)
            self._mapped_shards[number] = shard
        return shard


Vectors: TypeAlias = NDArray[np.float32] | Rows
