"""A projection into the old space, for a new model with another dimension than the old one.

It is a linear layer without a shift inside the network, so it is trained, kept and fingerprinted
with it; the network's own output does not pass through it. Because it has no shift, the direction
of a projected vector does not depend on the vector's length: finished embeddings can be projected.
"""

import hashlib
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from unibct.arrays import checked_embeddings, normalized, same_kind, to_numpy
from unibct.data.decoding import Pixels
from unibct.data.training_classes import TrainingClasses
from unibct.distributed.device import callers_generators_kept, seed_generators
from unibct.errors import UserError
from unibct.models.input import InputSpec
from unibct.models.model import Model, embed_in_batches

MODULE = "old_space"  # the name of the layer in the network
WEIGHT = f"{MODULE}.weight"  # and of its weight in a file


def add_projection(network: nn.Module, dim: int, old_dim: int, *, seed: int = 0) -> None:
    """Give a network a projection; its weights depend on ``seed`` only."""
    with callers_generators_kept():
        layer = nn.Linear(dim, old_dim, bias=False)
        seed_generators(seed)
        nn.init.orthogonal_(layer.weight)
    network.add_module(MODULE, layer)


def projection_weight(network: nn.Module) -> Tensor | None:
    """Return the (old dim, dim) weight of a network's projection; None if it has none."""
    layer = getattr(network, MODULE, None)
    return None if layer is None else cast(nn.Linear, layer).weight


def without_projection(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return a network's tensors without the projection's."""
    return {name: tensor for name, tensor in tensors.items() if name != WEIGHT}


def old_space_dim(model: Model) -> int | None:
    """Return the dimension of the old space that a model projects into; None if it does not."""
    weight = None if model.vector_map is not None else projection_weight(model.network)
    return None if weight is None else weight.shape[0]


def to_old_space(model: Model, embeddings: Any) -> Any:
    """Project a model's embeddings into the space of its old model.

    Args:
        model: a model that was trained with another dimension than its old model's.
        embeddings: (n, dim) of any length, NumPy or torch.

    Returns:
        (n, old dim), L2-normalised, of the same kind.
    """
    require_projection(model)
    weight = projection_weight(model.network)
    assert weight is not None
    vectors = checked_embeddings(embeddings, "embeddings")
    if vectors.shape[1] != model.dim:
        raise UserError(
            f"embeddings has dimension {vectors.shape[1]}, and {model.name} has {model.dim}: give "
            "embeddings that it has made"
        )
    projected = normalized(vectors.astype(np.float32, copy=False) @ to_numpy(weight).T)
    return same_kind(projected, embeddings)


def require_projection(model: Model) -> int:
    """Return ``old_space_dim`` of a model, or raise an error that says why it has none."""
    dim = old_space_dim(model)
    if dim is not None:
        return dim
    reason = "its dimension is that of its old model, or it has none"
    if model.vector_map is not None:
        reason = "it is adapted, so its own embeddings are in the space of its old model already"
    raise UserError(f"{model.name} has no projection into an old space: {reason}")


def known_score_scale(new: object, old_fingerprint: str) -> float | None:
    """Return the score scale of a new model for an old one; None if it is not known.

    Of all embedders only models know their scale, and for one old model only.
    """
    model = new.model if isinstance(new, OldSpaceModel) else new
    if not isinstance(model, Model) or model.old_fingerprint != old_fingerprint:
        return None
    return model.score_scale


def old_space_fingerprint(fingerprint: str) -> str:
    """Return the fingerprint of a model in its old space, from the model's own."""
    return hashlib.sha256(f"old space {fingerprint}".encode()).hexdigest()[:32]


class OldSpaceModel:
    """A model whose embeddings are projected into the space of its old model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.dim = require_projection(model)  # the old model's

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"{self.model.name} in the old space"

    @property
    def fingerprint(self) -> str:
        """Made from the model's: its projected vectors are other vectors."""
        return old_space_fingerprint(self.model.fingerprint)

    @property
    def score_scale(self) -> float | None:
        """The model's, see ``Model``."""
        return self.model.score_scale

    @property
    def training_classes(self) -> TrainingClasses:
        """The classes that the model was trained on."""
        return self.model.training_classes

    @property
    def input(self) -> InputSpec:
        """The images that it takes."""
        return self.model.input

    def embed(self, images: Any, *, batch_size: int = 256) -> Any:
        """Return L2-normalised embeddings of images of any size, see ``Model.embed``."""
        return embed_in_batches(self, images, batch_size)

    def embed_pixels(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return L2-normalised embeddings of one batch, in the old space."""
        return to_old_space(self.model, self.model.embed_pixels(pixels))

    def raw_embeddings(self, pixels: Pixels, *, flip_test: bool = True) -> NDArray[np.float32]:
        """Return embeddings in the old space that are not normalised, see ``Model``."""
        weight = projection_weight(self.model.network)
        assert weight is not None
        return self.model.raw_embeddings(pixels, flip_test=flip_test) @ to_numpy(weight).T

    def to(self, device: Any) -> "OldSpaceModel":
        """Move the network (in place) to a device."""
        self.model.to(device)
        return self
