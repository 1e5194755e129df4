"""The table of architectures: a name, and how it is built for an input and a dimension."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from unibct.errors import UserError
from unibct.models.architectures.resnet import BasicBlock, Bottleneck, IResNet, ResNet


@dataclass(frozen=True)
class InputSpec:
    """What a network takes: size, channels, and (x/255 − mean)/std of the pixels."""

    height: int
    width: int
    channels: int
    mean: float = 0.5
    std: float = 0.5

    @property
    def size(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels


@dataclass(frozen=True)
class Architecture:
    """A way to build a network, with the input and the dimension it has by default.

    Attributes:
        build: makes it for an input and a dimension.
        input: what it takes.
        dim: of its embeddings.
        larger: the architecture that a team would upgrade to.
    """

    build: Callable[[InputSpec, int], nn.Module]
    input: InputSpec
    dim: int
    larger: str | None = None


_FACE = InputSpec(112, 112, 3)
_GLYPH = InputSpec(32, 32, 1)


def _resnet(
    block: type[BasicBlock] | type[Bottleneck], *depths: int
) -> Callable[[InputSpec, int], nn.Module]:
    return lambda spec, dim: ResNet(
        block, depths, (64, 128, 256, 512), dim=dim, channels=spec.channels
    )


def _iresnet(*depths: int) -> Callable[[InputSpec, int], nn.Module]:
    return lambda spec, dim: IResNet(
        depths, dim=dim, channels=spec.channels, height=spec.height, width=spec.width
    )


def _small(*widths: int) -> Callable[[InputSpec, int], nn.Module]:
    return lambda spec, dim: ResNet(
        BasicBlock,
        (1,) * len(widths),
        widths,
        dim=dim,
        channels=spec.channels,
        small_images=(spec.height, spec.width),
    )


ARCHITECTURES: dict[str, Architecture] = {
    "resnet18": Architecture(_resnet(BasicBlock, 2, 2, 2, 2), _FACE, 512, larger="resnet50"),
    "resnet50": Architecture(_resnet(Bottleneck, 3, 4, 6, 3), _FACE, 512),
    "iresnet18": Architecture(_iresnet(2, 2, 2, 2), _FACE, 512, larger="iresnet50"),
    "iresnet50": Architecture(_iresnet(3, 4, 14, 3), _FACE, 512),
    "resnet-small": Architecture(_small(32, 64, 128), _GLYPH, 128, larger="resnet-small-wide"),
    "resnet-small-wide": Architecture(_small(48, 96, 192), _GLYPH, 128),
}


def find_architecture(name: str) -> Architecture:
    """The architecture called ``name``, or an error that lists the names there are."""
    if name not in ARCHITECTURES:
        raise UserError(f"unknown architecture {name!r}; choose one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def build_network(name: str, spec: InputSpec, dim: int, *, seed: int = 0) -> nn.Module:
    """A network with weights drawn from ``seed``, whatever the global random state is."""
    architecture = find_architecture(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build(spec, dim)
