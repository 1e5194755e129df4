"""The base of embedders of which only input and output are known."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import normalized
from unibct.data.augmentation import mirrored
from unibct.data.decoding import Pixels
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses
from unibct.models.input import InputSpec
from unibct.models.model import embed_in_batches


class BlackBox(ABC):
    """A function from pixels to vectors, with its dimension and fingerprint.

    A subclass sets the attributes and has ``outputs``.

    Attributes:
        name: what the user called it.
        dim: the dimension of its vectors.
        fingerprint: tells it from all embedders with other vectors.
        input: the size and channels that it takes.
        training_classes: nothing is known about them.
    """

    name: str
    dim: int
    fingerprint: str
    input: InputSpec
    training_classes: TrainingClasses = UNKNOWN_CLASSES

    @abstractmethod
    def outputs(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return the vectors of one batch as they come.

        The shapes are (batch, height, width, channels) -> (batch, dim).
        """

    def embed(self, images: Any, *, batch_size: int = 256) -> Any:
        """Return L2-normalised embeddings of images of any size, see ``Model.embed``."""
        return embed_in_batches(self, images, batch_size)

    def embed_pixels(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return L2-normalised embeddings of one batch that already has the input's size."""
        return normalized(self.outputs(pixels)).astype(np.float32, copy=False)

    def raw_embeddings(self, pixels: Pixels, *, flip_test: bool = True) -> NDArray[np.float32]:
        """Return embeddings that are not normalised, of both views with ``flip_test``."""
        vectors = self.outputs(pixels)
        return vectors + self.outputs(mirrored(pixels)) if flip_test else vectors

    def to(self, device: Any) -> Self:
        """Stay where it is: a black box chooses its device when it is opened."""
        return self
