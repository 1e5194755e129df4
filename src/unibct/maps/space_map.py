"""A map between the spaces of two models that knows its direction and refuses any other use."""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import to_numpy
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses
from unibct.errors import UserError
from unibct.maps.vector_map import VectorMap

Direction: TypeAlias = Literal["backward", "forward"]
"""``backward``: new queries into the old space. ``forward``: old rows into the new space."""

BACKWARD: Direction = "backward"
FORWARD: Direction = "forward"


@dataclass(frozen=True)
class KnownPairs:
    """Images whose embeddings by both models are kept with a map, to try it with.

    Attributes:
        ids: one per image.
        new: (images, new dim).
        old: (images, old dim).
    """

    ids: tuple[str, ...]
    new: NDArray[np.float32]
    old: NDArray[np.float32]


@dataclass(frozen=True)
class SpaceMap:
    """A fitted map.

    Attributes:
        vector_map: the map itself.
        direction: ``backward`` or ``forward``.
        new_model: the fingerprint of the new model.
        old_model: the fingerprint of the old model.
        known: pairs that the map was not fitted on.
        found_share: the share of known queries that found their mates when the map was fitted.
        score_scale: what puts scores of mapped queries with old rows on the old scale, see
            ``embeddings/score_scale.py``; None for a forward map, or if it is not known.
        fitted_on: the classes of the images that it was fitted on.
    """

    vector_map: VectorMap
    direction: Direction
    new_model: str
    old_model: str
    known: KnownPairs
    found_share: float
    score_scale: float | None = None
    fitted_on: TrainingClasses = UNKNOWN_CLASSES

    @property
    def source(self) -> str:
        """The fingerprint of the model whose embeddings it takes."""
        return self.new_model if self.direction == BACKWARD else self.old_model

    @property
    def target(self) -> str:
        """The fingerprint of the model into whose space it maps."""
        return self.old_model if self.direction == BACKWARD else self.new_model

    @property
    def fingerprint(self) -> str:
        """A digest of the map, and so of the kind of rows that it makes.

        Mapped rows are a kind of their own: neither the old nor the new model made them.
        """
        header = ["map", self.vector_map.kind, self.direction, self.new_model, self.old_model]
        digest = hashlib.sha256(json.dumps(header).encode())
        for name, tensor in sorted(self.vector_map.tensors().items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(to_numpy(tensor), dtype="<f4").tobytes())
        return digest.hexdigest()[:32]

    def require_source(self, fingerprint: str, name: str) -> None:
        """Refuse embeddings by any model but the one whose embeddings the map takes."""
        if fingerprint == self.source:
            return
        if fingerprint == self.target:
            other = FORWARD if self.direction == BACKWARD else BACKWARD
            raise UserError(
                f"{name} is in the space that this map leads to: a {self.direction} map takes "
                f"{_TAKES[self.direction]}; fit one with --direction {other} for these"
            )
        raise UserError(
            f"{name} was made by model {fingerprint}; this {self.direction} map takes embeddings "
            f"by model {self.source} only"
        )


_TAKES = {BACKWARD: "the new model's embeddings", FORWARD: "the old model's embeddings"}


def checked_direction(text: str) -> Direction:
    """Return a direction, or raise an error that lists them."""
    if text not in get_args(Direction):
        raise UserError(f"unknown direction {text!r}; choose {' or '.join(get_args(Direction))}")
    return cast(Direction, text)
