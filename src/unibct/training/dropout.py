"""Drop-out before the head, and random numbers that depend on nothing but the place in a run."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unibct.errors import UserError

_HEADS = ("head", "fc")  # the layer to the embedding, in the networks of others and in ours


def add_dropout(network: nn.Module, share: float) -> None:
    """Leave out a share of the inputs of the network's head, in training mode only."""
    layers = dict(network.named_children())
    head = next((layers[name] for name in _HEADS if name in layers), None)
    if head is None:
        raise UserError(f"dropout = {share}: the network has no head before which to drop")

    def drop(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        return (F.dropout(inputs[0], share, training=layer.training),)

    head.register_forward_pre_hook(drop)


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Seed torch's generators for one step.

    Whatever a network draws then depends on the place in the run only. So a resumed run draws
    the same without keeping a generator's state.
    """
    state = np.random.SeedSequence([seed, epoch, step, 3, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]))
