"""Classes divided among the ranks: which rows a rank holds, and which of them a step uses.

With sampling (Partial FC, An et al., 2022) a step uses the classes of the batch and some random
others of each rank's range, which saves time and memory.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.errors import UserError


@dataclass(frozen=True)
class ClassPart:
    """The classes that this rank uses in a step.

    Attributes:
        classes: the number of all classes.
        ranks: the ranks that share them.
        sampled: (rows,) ascending rows of this rank's range; None means all of them.
    """

    classes: int
    ranks: Ranks = ALONE
    sampled: Tensor | None = None

    @property
    def range(self) -> range:
        """The classes that this rank holds."""
        return self.ranks.share(self.classes)

    @property
    def whole(self) -> bool:
        """Whether this rank uses every class."""
        return self.ranks.world == 1 and self.sampled is None

    def rows(self, class_vectors: Tensor) -> Tensor:
        """Select the rows in use: (own classes, dim) -> (rows in use, dim)."""
        return class_vectors if self.sampled is None else class_vectors[self.sampled]

    def columns(self, labels: Tensor) -> Tensor:
        """Return each label's index among the rows in use, or −1 for other ranks' classes.

        Every label of this rank must be among the rows in use.
        """
        index = labels - self.range.start
        is_own = (index >= 0) & (index < len(self.range))
        if self.sampled is not None:
            index = torch.searchsorted(self.sampled, index.clamp(0, len(self.range) - 1))
        return torch.where(is_own, index, -1)


def sampled_classes(
    labels: NDArray[np.int64], own_classes: range, rate: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the rows of a step: those of the labels, and random others.

    Args:
        labels: (batch,) the classes of the whole batch.
        own_classes: this rank's range of classes.
        rate: the share of the range to use; more are used if the labels alone are more.
        rng: the generator that draws the others.

    Returns:
        (rows,) ascending, counted from the beginning of ``own_classes``.
    """
    if not 0 < rate <= 1:
        raise UserError(f"sample_rate must lie in (0, 1], not {rate}")
    first, end = own_classes.start, own_classes.stop
    present = np.unique(labels[(labels >= first) & (labels < end)]) - first
    missing = max(round(rate * len(own_classes)), 1) - len(present)
    keys = rng.random(len(own_classes), dtype=np.float32)  # drawn in any case: the same use of rng
    if missing <= 0:
        return present
    keys[present] = 2.0  # never among the smallest
    negatives = np.argpartition(keys, missing - 1)[:missing]
    return np.sort(np.concatenate([present, negatives]))


def step_rows(
    weights: Tensor,
    momentum_buffer: Tensor,
    rows: Tensor,
    gradient: Tensor,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Make a step of SGD (in place) on some rows. The other rows and their momentum stay.

    Args:
        weights: (own classes, dim).
        momentum_buffer: (own classes, dim).
        rows: (rows,) the rows to change.
        gradient: (rows, dim) their gradients.
        lr: learning rate.
        momentum: as in ``torch.optim.SGD``.
        weight_decay: as in ``torch.optim.SGD``.
    """
    before = weights[rows]
    velocity = momentum * momentum_buffer[rows] + gradient + weight_decay * before
    momentum_buffer[rows] = velocity
    weights[rows] = before - lr * velocity
