"""What the prototype functions are given, and its checks: kind, settings, embeddings, labels.

A kind names its function as text, because ``weights`` imports this module.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unibct.arrays import (
    checked_embeddings,
    checked_labels,
    is_tensor,
    readonly_tensor,
    require_contiguous_labels,
)
from unibct.errors import UserError
from unibct.registry import Registry


@dataclass(frozen=True)
class PrototypeKind:
    """A kind of prototype: how much each image of a class counts."""

    home: str  # where the function is that weighs the images of a batch: ``module:attribute``
    needs_new: bool = False  # whether the weights come from the new model's embeddings

    def load(self) -> "Callable[[ClassBatch, PrototypeSettings], Tensor]":
        """Import the function that weighs the images of a batch: it returns (classes, m)."""
        return resolve_name(self.home)


PROTOTYPE_KINDS: Registry[PrototypeKind] = Registry(
    "prototype kind",
    {
        "centroid": PrototypeKind("unibct.prototypes.weights:weigh_equally"),
        "drop": PrototypeKind("unibct.prototypes.weights:weigh_by_distance"),
        "structural": PrototypeKind("unibct.prototypes.weights:weigh_by_walk", needs_new=True),
    },
)

_SMALLEST_TAU = 1e-30  # a score divided by it is far from the largest float32


@dataclass(frozen=True)
class PrototypeSettings:
    """How prototypes are computed; checked on construction."""

    kind: str = "structural"  # a name from ``PROTOTYPE_KINDS``
    tau: float = 0.05  # temperature of the graph's softmax (``structural``)
    lam: float = 0.9  # share of the walk that follows the graph, 0 ≤ lam < 1 (``structural``)
    drop: float = 0.1  # share of a class's images that is left out, 0 ≤ drop < 1 (``drop``)

    def __post_init__(self) -> None:
        """Raise an error for settings that give no prototype."""
        PROTOTYPE_KINDS.find(self.kind)
        if not self.tau >= _SMALLEST_TAU:
            raise UserError(
                f"tau must be positive, {_SMALLEST_TAU:g} or more, not {self.tau}: scores are "
                "divided by it in single precision"
            )
        if not 0 <= self.lam < 1:
            raise UserError(
                f"lam must be at least 0 and below 1, not {self.lam}: at 1 the walk forgets V"
            )
        if not 0 <= self.drop < 1:
            raise UserError(f"drop must be at least 0 and below 1, not {self.drop}")

    @property
    def needs_new(self) -> bool:
        """Whether the new model's embeddings are used."""
        return PROTOTYPE_KINDS[self.kind].needs_new


def float_tensor(embeddings: Any, name: str) -> Tensor:
    """Check embeddings (rows, dim) and return them as a float32 or float64 tensor.

    The tensor shares the memory of ``embeddings`` where that is possible. Errors use ``name``.
    """
    if is_tensor(embeddings):
        tensor = cast(Tensor, embeddings).detach()
        if tensor.ndim != 2 or tensor.shape[1] == 0 or not tensor.dtype.is_floating_point:
            raise UserError(
                f"{name} must be floating point of shape (rows, dim), "
                f"not {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        finite = torch.isfinite(tensor).all(dim=1)
        if not bool(finite.all()):
            row = int((~finite).int().argmax())
            raise UserError(f"{name} has NaN or infinite values, first in row {row}")
    else:
        tensor = readonly_tensor(checked_embeddings(embeddings, name))
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def class_labels(labels: Any, rows: int) -> NDArray[np.int64]:
    """Check that each of 0…C-1 is the label of a row, and return the labels (rows,) as int64."""
    label_array = checked_labels(labels, rows)
    require_contiguous_labels(label_array)
    return label_array


def require_same_rows(new: Any, old: Any) -> None:
    """Raise an error if the new and the old embeddings differ in their number of rows."""
    if len(new) != len(old):
        raise UserError(f"new has {len(new)} rows but old has {len(old)}: give both for each image")


# Batches of classes with about the same number of images, in memory that is used again.

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

        It is on the device of ``example``, and of its type unless ``dtype`` is given.
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
    multiplied up to twice as fast as others. (A single image is not padded.) ``sizes``, (classes,),
    are the images of each class, and ``dim`` the numbers in a row; ``order`` has the rows of the
    first class, then of the second, …: 0, 1, … by default. What is yielded is the classes, and
    their rows (classes, m), padded with the first row of the class.
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

    ``sizes``, (classes,), are the images of its classes; ``example`` is on the mask's device.
    """
    column = torch.arange(rows.shape[1], device=example.device)
    return column < torch.from_numpy(sizes).to(example.device)[:, None]


def take_rows(
    vectors: Tensor, rows: NDArray[np.int64], memory: ReusedMemory, name: str = "rows"
) -> Tensor:
    """Return rows (classes, m, dim) of a batch, float16 widened to float32.

    They are in the memory's part ``name``, which the next call overwrites.
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
    """A batch of classes, and the embeddings of their images."""

    old: Tensor  # (images, dim) of all classes
    new: Tensor  # (images, dim′) of all classes
    rows: NDArray[np.int64]  # (classes, m) the batch's rows
    valid: Tensor  # (classes, m) which of them are not padding
    memory: ReusedMemory  # for the rows that are taken

    def old_rows(self) -> Tensor:
        """Return (classes, m, dim), in memory that the next call overwrites."""
        return take_rows(self.old, self.rows, self.memory)

    def new_rows(self) -> Tensor:
        """Return (classes, m, dim′), in memory that the next call overwrites."""
        return take_rows(self.new, self.rows, self.memory, "new")
