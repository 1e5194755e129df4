"""Somebody else's backbone with pooling and a projection to the wanted dimension."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from unibct.errors import UserError, first_line
from unibct.models.input import InputSpec
from unibct.models.weights_file import load_weights, read_weights, weight_files

Pool = Callable[[nn.Module, Tensor], Tensor]


class EmbeddingNetwork(nn.Module):
    """A backbone, its pooling, and a linear layer to the embedding.

    If the backbone gives vectors of the wanted dimension, there is no linear layer, so that
    weights that others have trained embed as they did.

    Args:
        backbone: the network.
        pool: calls the backbone with a batch of images and returns (batch, features).
        features: the dimension of what ``pool`` returns.
        dim: dimension of the embedding.
    """

    def __init__(self, backbone: nn.Module, pool: Pool, features: int, dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        self._pool = pool
        self.head = nn.Identity() if features == dim else nn.Linear(features, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) -> (batch, dim), not normalised."""
        return self.head(self._pool(self.backbone, x))


def embedding_network(
    name: str, backbone: nn.Module, pool: Pool, spec: InputSpec, dim: int, *, sizes: str = ""
) -> EmbeddingNetwork:
    """Put a head on a backbone, after a trial with one image.

    Args:
        name: of the architecture, for messages.
        backbone: the network.
        pool: see ``EmbeddingNetwork``.
        spec: the images that it is to take.
        dim: dimension of the embedding.
        sizes: which images it can take, for messages.
    """
    backbone.float()
    return EmbeddingNetwork(backbone, pool, feature_count(name, backbone, pool, spec, sizes), dim)


def feature_count(
    name: str, backbone: nn.Module, pool: Pool, spec: InputSpec, sizes: str = ""
) -> int:
    """Return the dimension of a backbone's pooled output, or say why it cannot take the images."""
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    image = torch.linspace(-1, 1, spec.channels * spec.height * spec.width, device=device)
    image = image.view(1, spec.channels, spec.height, spec.width)
    was_training = backbone.training
    backbone.eval()
    try:
        with torch.no_grad():
            output: Any = pool(backbone, image)
            again: Any = pool(backbone, image)
    except UserError:
        raise
    except Exception as error:  # a network may raise anything about a shape that it cannot take
        reason = first_line(error)
        raise UserError(
            f"{name} cannot take images of {spec.height}x{spec.width} with {spec.channels} "
            f"channels{f'; it takes {sizes}' if sizes else ''} ({reason})"
        ) from error
    finally:
        backbone.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != 1 or not output.numel():
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(f"{name} gives {shape} for one image, not one vector")
    if not output.is_meta and not torch.allclose(output, again, rtol=1e-3, atol=1e-5):
        raise UserError(f"{name} gives another vector each time that it sees the same image")
    return output.shape[1]


def pooled(output: Tensor) -> Tensor:
    """Return (batch, features): the mean over tokens or positions, if there are any.

    Args:
        output: (batch, features), (batch, tokens, features) or (batch, features, height, width).
    """
    if output.ndim == 4:
        return output.mean(dim=(2, 3))
    return output.mean(dim=1) if output.ndim == 3 else output


def load_backbone(network: nn.Module, *, place: str) -> None:
    """Load the weights of a file or folder into the backbone of an ``EmbeddingNetwork``."""
    assert isinstance(network, EmbeddingNetwork)
    backbone, tensors = network.backbone, read_weights(weight_files(place))
    load_weights(backbone, tensors, place, removed=_removed_classifier(backbone))


def _removed_classifier(backbone: nn.Module) -> tuple[str, ...]:
    """Return how the names of a classifier begin that may have been taken off a backbone."""
    layers = cast(Iterable[tuple[str, nn.Module]], backbone.named_modules())
    names = [name for name, layer in layers if isinstance(layer, nn.Identity)]
    its_config: Any = getattr(backbone, "pretrained_cfg", None) or {}  # of timm's networks
    stated: Any = its_config.get("classifier")
    if stated is not None:  # only there: identities elsewhere stand for layers of other variants
        stated = [stated] if isinstance(stated, str) else list(stated)
        parts = {name.split(".")[0] for name in stated}
        names = stated + [name for name in names if name.split(".")[0] in parts]
    return tuple(f"{name}." for name in names)
