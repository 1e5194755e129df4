"""Gradient clipping: no update is larger than its gradients' largest norm."""

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from unibct.distributed.ranks import ALONE, Ranks


def gradients_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that the backward pass has computed."""
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def clip_gradients(
    shared: Sequence[Tensor], class_weights: Sequence[Tensor], largest: float, ranks: Ranks = ALONE
) -> None:
    """Scale gradients down (in place) if their common norm is above ``largest``.

    torch's own norm is that of one process. Here each rank has its own classes, whose gradients
    belong to the same norm. The host never waits for the device.

    Args:
        shared: weights whose gradients are the same on every rank.
        class_weights: the weights of this rank's classes.
        largest: the largest norm.
        ranks: the processes that share the run.
    """
    squares = ranks.summed(get_total_norm(gradients_of(class_weights)).square())
    norm = (squares + get_total_norm(gradients_of(shared)).square()).sqrt()
    clip_grads_with_norm_([*shared, *class_weights], largest, norm)
