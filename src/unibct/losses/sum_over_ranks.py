"""The sum of a loss whose terms are divided among the ranks."""

from typing import Any, cast

import torch
from torch import Tensor

from unibct.distributed.ranks import Ranks


def sum_over_ranks(total: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum of all ranks' totals, the same on each rank.

    The gradient on each rank is that of its own total, so each term counts once. Use it with
    ``Ranks.gathered_rows``, and for class weights, which only one rank holds.

    Args:
        total: scalar, this rank's part of the loss, with gradients.
        ranks: the ranks that share the loss.
    """
    return total if ranks.world == 1 else cast(Tensor, _Sum.apply(total, ranks))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        total, ranks = args
        return ranks.summed(total.clone())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0], None
