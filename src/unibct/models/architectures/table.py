"""The table of architectures, and how to build a network by name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from unibct.errors import UserError
from unibct.models.architectures.iresnet import iresnet
from unibct.models.architectures.resnet import BasicBlock, Bottleneck, resnet, small_resnet
from unibct.models.input import InputSpec


@dataclass(frozen=True)
class Architecture:
    """How to build a network, with its default input and dimension.

    Attributes:
        build: builds the network for an input and a dimension.
        input: the default input.
        dim: the default dimension of the embeddings.
        larger: the architecture that a team would upgrade to.
    """

    build: Callable[[InputSpec, int], nn.Module]
    input: InputSpec
    dim: int
    larger: str | None = None


_FACE = InputSpec(112, 112, 3)
_GLYPH = InputSpec(32, 32, 1)

ARCHITECTURES: dict[str, Architecture] = {
    "resnet18": Architecture(resnet(BasicBlock, 2, 2, 2, 2), _FACE, 512, larger="resnet50"),
    "resnet50": Architecture(resnet(Bottleneck, 3, 4, 6, 3), _FACE, 512),
    "iresnet18": Architecture(iresnet(2, 2, 2, 2), _FACE, 512, larger="iresnet50"),
    "iresnet50": Architecture(iresnet(3, 4, 14, 3), _FACE, 512),
    "resnet-small": Architecture(
        small_resnet(32, 64, 128), _GLYPH, 128, larger="resnet-small-wide"
    ),
    "resnet-small-wide": Architecture(small_resnet(48, 96, 192), _GLYPH, 128),
}


def find_architecture(name: str) -> Architecture:
    """Return the architecture called ``name``, or raise an error that lists the names."""
    if name not in ARCHITECTURES:
        raise UserError(f"unknown architecture {name!r}; choose one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def build_network(name: str, spec: InputSpec, dim: int, *, seed: int = 0) -> nn.Module:
    """Build a network. Its weights depend on ``seed`` only, not on the global random state."""
    architecture = find_architecture(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build(spec, dim)
