"""Give a larger network the function of a smaller one, after Net2Net (Chen et al., ICLR 2016).

A wider network gets copies of some of the old channels. What reads a copied channel divides its old
weight among the copies, in random shares: with equal shares the copies would get the same gradients
and stay copies. A deeper network gets additional blocks that add nothing at first. The larger
network then gives the embeddings of the smaller one, to rounding, and can learn more.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

_NORMS = (_BatchNorm, nn.PReLU)  # also those over several processes


def grown_state(old: Mapping[str, Tensor], new: nn.Module, *, seed: int) -> dict[str, Tensor]:
    """Return weights with which a larger network computes what a smaller one computes.

    ``old`` are the weights of the smaller one, a ``ResNet`` or ``IResNet``, and ``new`` is
    a network of the same kind with at least as many channels and blocks in each stage. Blocks that
    the old one does not have keep their weights, except the last norm's. The seed chooses which
    channels are copied, and the shares.
    """
    return _Growth(old, new, torch.Generator().manual_seed(seed)).run()


class _Growth:
    """Walks through a network from its input to its output.

    A map of channels is a tensor with the old channel of each new one.
    """

    def __init__(self, old: Mapping[str, Tensor], new: nn.Module, rng: torch.Generator) -> None:
        self._old = {name: value.cpu() for name, value in old.items()}
        self._new = new
        self._rng = rng
        self._state = {name: value.cpu().clone() for name, value in new.state_dict().items()}

    def run(self) -> dict[str, Tensor]:
        """Return the weights of the new network."""
        channels = torch.arange(self._old["conv1.weight"].shape[1])
        for name, layer in self._new.named_children():
            if isinstance(layer, nn.Conv2d):
                channels = self._convolution(name, channels, self._copies(name))
            elif isinstance(layer, nn.Sequential):
                channels = self._stage(name, layer, channels)
            elif isinstance(layer, nn.Linear):
                channels = self._linear(name, channels)
            elif isinstance(layer, _NORMS):
                self._norm(name, channels)
        return self._state

    def _stage(self, stage: str, blocks: nn.Sequential, channels: Tensor) -> Tensor:
        for index, block in blocks.named_children():
            name = f"{stage}.{index}"
            if f"{name}.conv1.weight" in self._old:
                channels = self._block(name, block, channels)
            else:
                self._add_nothing(name, block)
        return channels

    def _block(self, block: str, layers: nn.Module, channels: Tensor) -> Tensor:
        """Grow a residual block, whose layers are listed in the order in which they act."""
        names = [name for name, layer in layers.named_children() if isinstance(layer, nn.Conv2d)]
        has_shortcut = f"{block}.downsample.0.weight" in self._old
        after = self._copies(f"{block}.{names[-1]}") if has_shortcut else channels
        inside = channels
        for name, layer in layers.named_children():
            if isinstance(layer, nn.Conv2d):
                place = f"{block}.{name}"
                outputs = after if name == names[-1] else self._copies(place)
                inside = self._convolution(place, inside, outputs)
            elif isinstance(layer, _NORMS):
                self._norm(f"{block}.{name}", inside)
        if has_shortcut:
            self._convolution(f"{block}.downsample.0", channels, after)
            self._norm(f"{block}.downsample.1", after)
        return after

    def _add_nothing(self, block: str, layers: nn.Module) -> None:
        """Let a new block return its input: its last norm has the scale 0 and adds 0."""
        norms = [name for name, layer in layers.named_children() if isinstance(layer, _NORMS)]
        for number in ("weight", "bias"):
            self._state[f"{block}.{norms[-1]}.{number}"].zero_()

    def _convolution(self, name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Set the weights of a convolution, and return the map of its output channels."""
        self._state[f"{name}.weight"] = self._divided(self._old[f"{name}.weight"], inputs)[outputs]
        return outputs

    def _linear(self, name: str, inputs: Tensor) -> Tensor:
        """Set a layer that reads whole maps, channel by channel; its outputs are not copied."""
        weight = self._old[f"{name}.weight"]
        by_channel = weight.reshape(len(weight), int(inputs.max()) + 1, -1)
        self._state[f"{name}.weight"] = self._divided(by_channel, inputs).flatten(1)
        self._state[f"{name}.bias"] = self._old[f"{name}.bias"].clone()
        return torch.arange(len(weight))

    def _norm(self, name: str, channels: Tensor) -> None:
        """Set the numbers of a batch normalisation or a PReLU, which has some for each channel."""
        for key in [key for key in self._state if key.rpartition(".")[0] == name]:
            value = self._old[key]
            self._state[key] = value[channels] if value.ndim else value.clone()

    def _copies(self, name: str) -> Tensor:
        """Return the map of a convolution's output channels: all old ones, and copies of some."""
        old, new = (len(state[f"{name}.weight"]) for state in (self._old, self._state))
        order = torch.randperm(old, generator=self._rng)
        return torch.cat([torch.arange(old), order.repeat(-(-new // old))])[:new]

    def _divided(self, weight: Tensor, inputs: Tensor) -> Tensor:
        """Return (outputs, new inputs, …) weights: each old input's, divided among its copies."""
        shares = 0.5 + 0.5 * torch.rand(len(weight), len(inputs), generator=self._rng)
        sums = torch.zeros(weight.shape[:2]).index_add_(1, inputs, shares)
        shares /= sums[:, inputs]
        return weight[:, inputs] * shares[(...,) + (None,) * (weight.ndim - 2)]
