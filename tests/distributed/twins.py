"""Two ranks without a second process: the other one has the same tensors as this one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unibct.distributed.ranks import Ranks


@dataclass(frozen=True)
class Twins(Ranks):
    """The first of two ranks that hold the same."""

    world: int = 2

    def summed(self, tensor: Tensor) -> Tensor:
        return tensor.mul_(2)

    def largest(self, tensor: Tensor) -> Tensor:
        return tensor

    def gathered(self, tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor])
