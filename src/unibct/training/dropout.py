"""Drop-out before the head, and random numbers that depend on nothing but the place in a run."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unibct.distributed.generators import seed_generators
from unibct.distributed.ranks import Ranks
from unibct.errors import UserError

_HEADS = ("head", "fc")  # the layer to the embedding, in the networks of others and in ours
_STEP = -0x61C8864680B583EB  # the constants of SplitMix64, as signed numbers
_MIXERS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
_BITS = 24  # of a number that decides whether an input is left out


class HeadDropout:
    """Leaves out a share of the inputs of a network's head, in training mode only.

    Which ones depends on the place in the run and in the whole batch, so that it is the same for
    any number of processes. Torch's own drop-out draws in each process apart.
    """

    def __init__(self, network: nn.Module, share: float, ranks: Ranks) -> None:
        layers = dict(network.named_children())
        head = next((layers[name] for name in _HEADS if name in layers), None)
        if head is None:
            raise UserError(f"dropout = {share}: the network has no head before which to drop")
        self._share, self._rank = share, ranks.rank
        self._key = torch.zeros((), dtype=torch.int64)  # a tensor, so that nothing compiles again
        head.register_forward_pre_hook(self._drop)

    def set_place(self, seed: int, epoch: int, step: int) -> None:
        """Say for which step of a run the next inputs are."""
        self._key = torch.tensor(_drawn([seed, epoch, step, 4], np.int64))

    def _drop(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        values: Tensor = inputs[0]
        if not layer.training:
            return (values,)
        stays = kept_inputs(self._key.to(values.device), values.shape, self._rank, self._share)
        return (values * stays / (1 - self._share),)


def kept_inputs(key: Tensor, shape: torch.Size, rank: int, share: float) -> Tensor:
    """Return which inputs stay, a tensor of ``shape``: a function of key and place in the batch.

    The number at place n is that of SplitMix64 (Steele et al., 2014) from the state ``key``, after
    n steps. No state is kept, so each process makes its own part only.

    Args:
        key: () int64, that of the step.
        shape: (own images, …); all processes have equally many.
        rank: which of the equal parts of the batch it is.
        share: of the inputs to leave out.
    """
    count = math.prod(shape)
    state = torch.arange(rank * count + 1, (rank + 1) * count + 1, device=key.device)
    state = state * _STEP + key  # int64, whose products wrap around
    for shift, factor in _MIXERS:
        state = (state ^ _shifted(state, shift)) * factor
    return (_shifted(state, 64 - _BITS) >= share * 2**_BITS).view(shape)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shift right as unsigned numbers; torch repeats the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Seed torch's generators for one step.

    Whatever a network draws then depends on the place in the run only. So a resumed run draws
    the same without keeping a generator's state.
    """
    seed_generators(_drawn([seed, epoch, step, 3, rank], np.uint64))


def _drawn(place: list[int], kind: Any) -> int:
    return int(np.random.SeedSequence(place).generate_state(1, np.uint64).astype(kind)[0])
