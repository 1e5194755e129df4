"""The networks: what an architecture is, the table of their names, and how one is built by name.

Networks know nothing about files, classes or training. The table is readable without torch: an
entry names the function that makes its builder as text, which is imported when a network is built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, cast

from unibct.data.decoding import VECTORS
from unibct.errors import UserError
from unibct.models.input import InputSpec
from unibct.registry import Registry

if TYPE_CHECKING:
    from torch import nn


RANDOM = "random"  # as the place of the weights: none are loaded


@dataclass(frozen=True)
class Architecture:
    """How to build a network, with its default input and dimension."""

    # Builds the network for an input and a dimension, with random weights.
    build: "Callable[[InputSpec, int], nn.Module]"
    input: InputSpec  # the default input
    dim: int  # the default dimension of the embeddings
    larger: str | None = None  # the architecture that a team would upgrade to
    # Smaller architectures whose trained networks it can start from, see ``growth``.
    grows_from: tuple[str, ...] = ()
    name: str = ""  # under which a model folder stores it
    # What another library needs to build the network again, as plain values; None for a network of
    # unibct.
    config: Mapping[str, Any] | None = None
    # Loads the weights that training starts from; None if they are random.
    start: "Callable[[nn.Module], None] | None" = None
    start_digest: str | None = None  # a hash of the files that ``start`` reads


def without_library(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a config without the release of the library: another one builds the same network."""
    if config is None:
        return None
    return {name: value for name, value in config.items() if name != "library"}


@dataclass(frozen=True)
class NetworkRequest:
    """What a user asks of an architecture besides its name."""

    # A file or folder with the first weights, or ``random``. None means those that come with the
    # architecture, if there are any.
    weights: str | None = None
    download: bool = False  # whether anything may be fetched from a hub
    # How a backbone's outputs become one vector: ``auto`` (the network's own), ``cls`` (the first
    # token) or ``mean`` (over all positions).
    pooling: str = "auto"


_FACE = InputSpec(112, 112, 3)
_GLYPH = InputSpec(32, 32, 1)
_VECTOR = InputSpec(1, 128, 1, fit=VECTORS)  # finished vectors; training sets their dimension


def _by(home: str, *numbers: int) -> "Callable[[InputSpec, int], nn.Module]":
    """Return what builds a network: ``module:name`` here makes the builder of these numbers."""
    return lambda spec, dim: resolve_name(f"{__package__}.{home}")(*numbers)(spec, dim)


_ARCHITECTURES = {
    "resnet18": Architecture(_by("resnet:basic_resnet", 2, 2, 2, 2), _FACE, 512, larger="resnet50"),
    "resnet50": Architecture(_by("resnet:bottleneck_resnet", 3, 4, 6, 3), _FACE, 512),
    "iresnet18": Architecture(_by("resnet:iresnet", 2, 2, 2, 2), _FACE, 512, larger="iresnet50"),
    "iresnet50": Architecture(
        _by("resnet:iresnet", 3, 4, 14, 3), _FACE, 512, grows_from=("iresnet18",)
    ),
    "resnet-small": Architecture(
        _by("resnet:small_resnet", 32, 64, 128), _GLYPH, 128, larger="resnet-small-wide"
    ),
    "resnet-small-wide": Architecture(
        _by("resnet:small_resnet", 48, 96, 192), _GLYPH, 128, grows_from=("resnet-small",)
    ),
    "projection": Architecture(_by("resnet:projection"), _VECTOR, 128, larger="projection-mlp"),
    "projection-mlp": Architecture(_by("resnet:projection", 2), _VECTOR, 128),
}
ARCHITECTURES: Registry[Architecture] = Registry("architecture", _ARCHITECTURES)

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
    """Return the architecture called ``name``, from ``ARCHITECTURES`` or FAMILY:REFERENCE."""
    request = request or NetworkRequest()
    family, colon, reference = name.partition(":")
    if colon and family in FAMILIES:
        return _family(family).open_architecture(reference, request)
    architecture = _own_architecture(name)
    if request.pooling != "auto":
        raise UserError(f"pooling = {request.pooling}: {name} has its own; leave pooling out")
    return starting_from(request.weights, _load_own_start, architecture)


def starting_from(
    place: str | None, load: "Callable[..., None]", architecture: Architecture
) -> Architecture:
    """Return the architecture whose first weights ``load(network, place=…)`` reads from a place.

    They are random if there is no place, or if it is ``RANDOM``.
    """
    from unibct.models.model_folder import files_digest, weight_files

    if place in (None, RANDOM):
        return architecture
    start = partial(load, place=place)
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
    from unibct.distributed.device import callers_generators_kept, seed_generators

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
    try:
        return replace(ARCHITECTURES.find(name), name=name)
    except UserError as error:
        raise UserError(f"{error}, {', '.join(family_references())}") from None


def family_references() -> list[str]:
    """Return how the networks of each family are written, such as ``timm:NAME``."""
    return [f"{family}:{reference}" for family, (_, reference) in FAMILIES.items()]


def _family(name: str) -> Family:
    return cast(Family, import_module(f"{__package__}.{FAMILIES[name][0]}"))


def _load_own_start(network: "nn.Module", *, place: str) -> None:
    from unibct.models.model_folder import load_weights, read_weights, weight_files

    load_weights(network, read_weights(weight_files(place)), place, head=_OWN_HEAD)
