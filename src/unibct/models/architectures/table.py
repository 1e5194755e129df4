"""The table of architectures, readable without torch, and how to build a network by name.

An entry names the function that makes its builder as text. The function is imported when a network
is built, so that the command line can list the names quickly.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, cast

from unibct.data.decoding import VECTORS
from unibct.errors import UserError
from unibct.models.architectures.architecture import RANDOM, Architecture, NetworkRequest
from unibct.models.input import InputSpec

if TYPE_CHECKING:
    from torch import nn

_FACE = InputSpec(112, 112, 3)
_GLYPH = InputSpec(32, 32, 1)
_VECTOR = InputSpec(1, 128, 1, fit=VECTORS)  # finished vectors; training sets their dimension


def _by(home: str, *numbers: int) -> "Callable[[InputSpec, int], nn.Module]":
    """Return what builds a network.

    Args:
        home: the function that makes the builder, as ``module:name`` within this package.
        numbers: its arguments.
    """
    return lambda spec, dim: resolve_name(f"{__package__}.{home}")(*numbers)(spec, dim)


ARCHITECTURES: dict[str, Architecture] = {
    "resnet18": Architecture(_by("resnet:basic_resnet", 2, 2, 2, 2), _FACE, 512, larger="resnet50"),
    "resnet50": Architecture(_by("resnet:bottleneck_resnet", 3, 4, 6, 3), _FACE, 512),
    "iresnet18": Architecture(_by("iresnet:iresnet", 2, 2, 2, 2), _FACE, 512, larger="iresnet50"),
    "iresnet50": Architecture(
        _by("iresnet:iresnet", 3, 4, 14, 3), _FACE, 512, grows_from=("iresnet18",)
    ),
    "resnet-small": Architecture(
        _by("resnet:small_resnet", 32, 64, 128), _GLYPH, 128, larger="resnet-small-wide"
    ),
    "resnet-small-wide": Architecture(
        _by("resnet:small_resnet", 48, 96, 192), _GLYPH, 128, grows_from=("resnet-small",)
    ),
    "projection": Architecture(_by("projection:projection"), _VECTOR, 128, larger="projection-mlp"),
    "projection-mlp": Architecture(_by("projection:projection", 2), _VECTOR, 128),
}
# Other people's networks, written FAMILY:REFERENCE: the module that opens them, and what the
# reference is. A module is imported when its family is used.
FAMILIES = {
    "transformers": ("transformers_vision", "FOLDER-or-NAME"),
    "timm": ("timm_networks", "NAME"),
    "python": ("python_networks", "MODULE:ATTRIBUTE"),
}
_OWN_HEAD = ("fc.", "features.")  # the last layers of our networks


class Family(Protocol):
    """The module of a family."""

    def open_architecture(self, reference: str, request: NetworkRequest) -> Architecture:
        """Return the architecture that a user names."""
        ...

    def stored_architecture(self, config: Mapping[str, Any], own_input: InputSpec) -> Architecture:
        """Return the architecture that a model folder describes."""
        ...


def find_architecture(name: str, request: NetworkRequest | None = None) -> Architecture:
    """Return the architecture called ``name``, or raise an error that lists the names.

    Args:
        name: from ``ARCHITECTURES``, or FAMILY:REFERENCE.
        request: where the weights come from, and whether they may be downloaded.
    """
    request = request or NetworkRequest()
    family, colon, reference = name.partition(":")
    if colon and family in FAMILIES:
        return _family(family).open_architecture(reference, request)
    architecture = _own_architecture(name)
    if request.pooling != "auto":
        raise UserError(f"pooling = {request.pooling}: {name} has its own; leave pooling out")
    if request.weights in (None, RANDOM):
        return architecture
    from unibct.models.weights_file import files_digest, weight_files

    place = request.weights
    start = partial(_load_own_start, place=place)
    return replace(architecture, start=start, start_digest=files_digest(weight_files(place)))


def stored_architecture(
    name: str, config: Mapping[str, Any] | None, own_input: InputSpec
) -> Architecture:
    """Return the architecture of a model folder, by its name and its stored configuration."""
    family = name.partition(":")[0]
    if config is None or family not in FAMILIES:
        return _own_architecture(name)
    return _family(family).stored_architecture(config, own_input)


def build_network(
    architecture: str | Architecture, spec: InputSpec, dim: int, *, seed: int = 0
) -> "nn.Module":
    """Build a network. Its weights depend on ``seed`` only, not on the global random state."""
    from unibct.distributed.generators import callers_generators_kept, seed_generators

    if isinstance(architecture, str):
        architecture = find_architecture(architecture)
    with callers_generators_kept():
        seed_generators(seed)
        return architecture.build(spec, dim)


def build_without_weights(architecture: Architecture, spec: InputSpec, dim: int) -> "nn.Module":
    """Build a network whose weights are loaded next; drawing random ones would be wasted time.

    Networks of others may hold tensors that are not stored with the weights: they are built whole.
    """
    import torch

    if architecture.config is not None:
        return build_network(architecture, spec, dim)
    with torch.device("meta"):
        network = architecture.build(spec, dim)
    return network.to_empty(device="cpu")


def _own_architecture(name: str) -> Architecture:
    if name not in ARCHITECTURES:
        names = ", ".join([*ARCHITECTURES, *family_references()])
        raise UserError(f"unknown architecture {name!r}; choose one of {names}")
    return replace(ARCHITECTURES[name], name=name)


def family_references() -> list[str]:
    """Return how the networks of each family are written, such as ``timm:NAME``."""
    return [f"{family}:{reference}" for family, (_, reference) in FAMILIES.items()]


def _family(name: str) -> Family:
    module = import_module(f"{__package__}.{FAMILIES[name][0]}")
    return cast(Family, module)


def _load_own_start(network: "nn.Module", *, place: str) -> None:
    from unibct.models.weights_file import load_weights, read_weights, weight_files

    load_weights(network, read_weights(weight_files(place)), place, head=_OWN_HEAD)
