"""Layers of a network that are not trained."""

from collections.abc import Iterable, Sequence
from typing import cast

from torch import nn

from unibct.errors import UserError


def freeze_layers(network: nn.Module, beginnings: Sequence[str]) -> None:
    """Take layers out of training.

    Args:
        network: changed in place.
        beginnings: of the names of the layers, such as ``layer1`` or ``backbone.encoder``.
    """
    names = [name for name, _ in network.named_parameters()]
    for beginning in beginnings:
        if not any(_is_below(name, beginning) for name in names):
            layers = ", ".join(name for name, _ in network.named_children())
            raise UserError(
                f"freeze = {beginning}: the network has no such layer; its layers are {layers}"
            )
    for name, parameter in network.named_parameters():
        if any(_is_below(name, beginning) for beginning in beginnings):
            parameter.requires_grad_(False)


def train_mode(network: nn.Module, beginnings: Sequence[str]) -> None:
    """Put a network into training mode, except that frozen layers keep their running means."""
    network.train()
    modules = cast(Iterable[tuple[str, nn.Module]], network.named_modules())
    for name, module in modules:
        if any(_is_below(name, beginning) for beginning in beginnings):
            module.eval()


def _is_below(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(f"{beginning.rstrip('.')}.")
