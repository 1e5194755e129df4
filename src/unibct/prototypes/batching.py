"""Batches of classes with about the same number of images, in memory that is used again."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BATCH_ENTRIES = 2_000_000  # numbers (rows · dim) in a batch: few enough for the processor's cache
_MULTIPLE = 8  # classes are padded to a multiple of this many images


class ReusedMemory:
    """Memory that each batch uses again: allocating it each time costs more than the arithmetic."""

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}

    def empty(
        self, name: str, shape: tuple[int, ...], example: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Return an uninitialised tensor in the memory that was last used for ``name``.

        Args:
            name: which memory to use.
            shape: of the tensor.
            example: a tensor on the same device, and of the same type unless ``dtype`` is given.
            dtype: the type.
        """
        count = math.prod(shape)
        block = self._blocks.get(name)
        if block is None or len(block) < count:
            block = self._blocks[name] = example.new_empty(count, dtype=dtype or example.dtype)
        return block[:count].view(shape)


def batches_of_like_size(
    sizes: NDArray[np.int64], dim: int, order: NDArray[np.int64] | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield classes by ascending size, as many at a time as fit the processor's cache.

    All classes of a batch are padded to the same multiple of 8 images: matrices of such sizes are
    multiplied up to twice as fast as others. (A single image is not padded.)

    Args:
        sizes: (classes,) images of each class.
        dim: numbers in a row.
        order: the rows of the first class, then of the second, …; 0, 1, … by default.

    Yields:
        The classes, and their rows (classes, m), padded with the first row of the class.
    """
    starts = np.cumsum(sizes) - sizes
    padded_sizes = np.where(sizes == 1, 1, -(-sizes // _MULTIPLE) * _MULTIPLE)
    by_size = np.argsort(padded_sizes, kind="stable")
    begin = 0
    while begin < len(by_size):
        m = int(padded_sizes[by_size[begin]])
        most_classes = max(1, BATCH_ENTRIES // (m * max(m, dim)))
        classes = by_size[begin : begin + most_classes]
        classes = classes[padded_sizes[classes] == m]
        column = np.arange(m)
        rows = starts[classes][:, None] + np.where(column < sizes[classes][:, None], column, 0)
        yield classes, rows if order is None else order[rows]
        begin += len(classes)


def valid_rows(sizes: NDArray[np.int64], rows: NDArray[np.int64], example: Tensor) -> Tensor:
    """Return a mask (classes, m) of the rows of a batch that are not padding.

    Args:
        sizes: (classes,) images of each class of the batch.
        rows: (classes, m) the batch's rows.
        example: a tensor on the device of the mask.
    """
    column = torch.arange(rows.shape[1], device=example.device)
    return column < torch.from_numpy(sizes).to(example.device)[:, None]


def take_rows(
    vectors: Tensor, rows: NDArray[np.int64], memory: ReusedMemory, name: str = "rows"
) -> Tensor:
    """Return rows (classes, m, dim) of a batch, float16 widened to float32.

    Args:
        vectors: (images, dim).
        rows: (classes, m) row numbers.
        memory: for the result, which the next call overwrites.
        name: which part of the memory to use.
    """
    shape = (rows.size, vectors.shape[1])
    batch = memory.empty(f"{name} as stored", shape, vectors)
    if vectors.device.type == "cpu":  # twice as fast as torch's; nothing is out of bounds
        np.take(vectors.numpy(), rows.ravel(), axis=0, out=batch.numpy(), mode="clip")
    else:
        index = torch.from_numpy(rows.ravel()).to(vectors.device)
        torch.index_select(vectors, 0, index, out=batch)
    if vectors.dtype not in (torch.float32, torch.float64):
        batch = memory.empty(name, shape, vectors, torch.float32).copy_(batch)
    return batch.view(*rows.shape, -1)


@dataclass(frozen=True)
class ClassBatch:
    """A batch of classes, and the embeddings of their images.

    Attributes:
        old: (images, dim) of all classes.
        new: (images, dim′) of all classes.
        rows: (classes, m) the batch's rows.
        valid: (classes, m) which of them are not padding.
        memory: for the rows that are taken.
    """

    old: Tensor
    new: Tensor
    rows: NDArray[np.int64]
    valid: Tensor
    memory: ReusedMemory

    def old_rows(self) -> Tensor:
        """Return (classes, m, dim), in memory that the next call overwrites."""
        return take_rows(self.old, self.rows, self.memory)

    def new_rows(self) -> Tensor:
        """Return (classes, m, dim′), in memory that the next call overwrites."""
        return take_rows(self.new, self.rows, self.memory, "new")
