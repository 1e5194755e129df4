"""The scale of the loss in half precision.

torch's ``GradScaler`` knows the gradients of one optimiser in one process. Here all ranks must
agree on an overflow, and sampled class weights belong to no optimiser; so the rule is ours, and
the arithmetic is the function that ``GradScaler`` itself uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks

_aten: Any = torch.ops.aten
_SMALLEST, _LARGEST = 1.0, 2.0**24
_GROWTH_INTERVAL = 2000  # steps without an overflow before the scale doubles


@dataclass
class LossScale:
    """The factor on the loss that keeps half-precision gradients from becoming zero.

    Attributes:
        value: a power of two, so that scaling and unscaling are exact.
        good_steps: steps without an overflow since the scale last changed.
    """

    value: float = 2.0**16
    good_steps: int = 0

    def unscale(self, gradients: Sequence[Tensor], ranks: Ranks = ALONE) -> bool:
        """Divide gradients by the scale, in place; return whether those of all ranks are finite.

        This is the one place of a step where the host waits for the device.
        """
        device = gradients[0].device
        overflow = torch.zeros(1, device=device)
        inverse = torch.full((1,), 1 / self.value, device=device)
        _aten._amp_foreach_non_finite_check_and_unscale_(list(gradients), overflow, inverse)
        return not bool(ranks.largest(overflow))

    def update(self, finite: bool) -> None:
        """Halve the scale after an overflow; double it after 2000 steps without one."""
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2, _SMALLEST)
        elif self.good_steps == _GROWTH_INTERVAL:
            self.value, self.good_steps = min(self.value * 2, _LARGEST), 0
