"""What the prototype functions are given, and its checks: settings, embeddings and labels."""

from dataclasses import dataclass
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
from unibct.prototypes.kinds import PROTOTYPE_KINDS

_SMALLEST_TAU = 1e-30  # a score divided by it is far from the largest float32


@dataclass(frozen=True)
class PrototypeSettings:
    """How prototypes are computed; checked on construction.

    Attributes:
        kind: a name from ``PROTOTYPE_KINDS``.
        tau: temperature of the graph's softmax (``structural``).
        lam: share of the walk that follows the graph, 0 ≤ lam < 1 (``structural``).
        drop: share of a class's images that is left out, 0 ≤ drop < 1 (``drop``).
    """

    kind: str = "structural"
    tau: float = 0.05
    lam: float = 0.9
    drop: float = 0.1

    def __post_init__(self) -> None:
        """Raise an error for settings that give no prototype."""
        if self.kind not in PROTOTYPE_KINDS:
            raise UserError(
                f"unknown kind of prototype {self.kind!r}; choose one of "
                f"{', '.join(PROTOTYPE_KINDS)}"
            )
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
