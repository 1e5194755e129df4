"""Classes spread over the ranks: which rows a rank holds, which of them a step looks at.

With a sample (Partial FC, An et al., 2022) a rank looks at the classes of the batch and at random
others of its range, so that cost and memory fall with the share.
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
    """Which classes this rank looks at in a step.

    Attributes:
        classes: how many there are in all.
        ranks: over which they are spread.
        sampled: (rows,) ascending rows of this rank's range; None: all of them.
    """

    classes: int
    ranks: Ranks = ALONE
    sampled: Tensor | None = None

    @property
    def range(self) -> range:
        """The classes of this rank."""
        return self.ranks.share(self.classes)

    @property
    def whole(self) -> bool:
        """Whether this rank looks at every class."""
        return self.ranks.world == 1 and self.sampled is None

    def rows(self, own: Tensor) -> Tensor:
        """(rows in use, dim) of the (own classes, dim) that this rank holds."""
        return own if self.sampled is None else own[self.sampled]

    def columns(self, labels: Tensor) -> Tensor:
        """The place of each label among the rows in use; −1 for other ranks' classes."""
        place = labels - self.range.start
        own = (place >= 0) & (place < len(self.range))
        if self.sampled is not None:
            place = torch.searchsorted(self.sampled, place.clamp(0, len(self.range) - 1))
        return torch.where(own, place, -1)


def sampled_classes(
    labels: NDArray[np.int64], own: range, rate: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of ``own`` to look at: those of the labels, and random others up to ``rate`` of it.

    Args:
        labels: the classes of the whole batch.
        own: this rank's range of classes.
        rate: share of the range; more if the labels alone are more.
        rng: where the others are drawn from.

    Returns:
        Ascending rows, counted from the beginning of ``own``.
    """
    if not 0 < rate <= 1:
        raise UserError(f"sample_rate must lie in (0, 1], not {rate}")
    present = np.unique(labels[(labels >= own.start) & (labels < own.stop)]) - own.start
    others = max(round(rate * len(own)), 1) - len(present)
    draw = rng.random(len(own), dtype=np.float32)
    if others <= 0:
        return present
    draw[present] = 2.0  # never among the smallest
    negatives = np.argpartition(draw, others - 1)[:others]
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
    """A step of SGD on some rows; the others, and their momentum, stay as they are."""
    kept = weights[rows]
    velocity = momentum * momentum_buffer[rows] + gradient + weight_decay * kept
    momentum_buffer[rows] = velocity
    weights[rows] = kept - lr * velocity
