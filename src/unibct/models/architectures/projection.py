"""Networks for finished vectors instead of images: one layer, or two with a ReLU between them."""

import math
from collections.abc import Callable

from torch import Tensor, nn

from unibct.models.input import InputSpec


class VectorNetwork(nn.Module):
    """Layers on vectors that come as images of one row: (batch, 1, 1, input dim) -> (batch, dim).

    The vectors have length 1; they are scaled to a mean square of 1 first.
    """

    def __init__(self, input_dim: int, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self._factor = math.sqrt(input_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the embeddings, not normalised."""
        return self.layers(self._factor * vectors.flatten(1))


def projection(hidden: int = 0) -> Callable[[InputSpec, int], nn.Module]:
    """Return what builds a projection with this many hidden units per input dimension."""

    def build(spec: InputSpec, dim: int) -> nn.Module:
        width = spec.height * spec.width * spec.channels
        if not hidden:
            return VectorNetwork(width, nn.Linear(width, dim))
        units = hidden * width
        layers = [nn.Linear(width, units), nn.BatchNorm1d(units), nn.ReLU(), nn.Linear(units, dim)]
        return VectorNetwork(width, nn.Sequential(*layers))

    return build
