"""What an architecture is: how its network is built, and where its first weights come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unibct.models.input import InputSpec

if TYPE_CHECKING:
    from torch import nn

RANDOM = "random"  # as the place of the weights: none are loaded


@dataclass(frozen=True)
class Architecture:
    """How to build a network, with its default input and dimension.

    Attributes:
        build: builds the network for an input and a dimension, with random weights.
        input: the default input.
        dim: the default dimension of the embeddings.
        larger: the architecture that a team would upgrade to.
        grows_from: smaller architectures whose trained networks it can start from, see ``growth``.
        name: under which a model folder stores it.
        config: what another library needs to build the network again, as plain values; None for
            a network of unibct.
        start: loads the weights that training starts from; None if they are random.
        start_digest: a hash of the files that ``start`` reads.
    """

    build: "Callable[[InputSpec, int], nn.Module]"
    input: InputSpec
    dim: int
    larger: str | None = None
    grows_from: tuple[str, ...] = ()
    name: str = ""
    config: Mapping[str, Any] | None = None
    start: "Callable[[nn.Module], None] | None" = None
    start_digest: str | None = None


def without_library(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a config without the release of the library: another one builds the same network."""
    if config is None:
        return None
    return {name: value for name, value in config.items() if name != "library"}


@dataclass(frozen=True)
class NetworkRequest:
    """What a user asks of an architecture besides its name.

    Attributes:
        weights: a file or folder with the first weights, or ``random``. None means those that
            come with the architecture, if there are any.
        download: whether anything may be fetched from a hub.
        pooling: how a backbone's outputs become one vector: ``auto`` (the network's own), ``cls``
            (the first token) or ``mean`` (over all positions).
    """

    weights: str | None = None
    download: bool = False
    pooling: str = "auto"
