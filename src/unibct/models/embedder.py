"""What every kind of model offers, whoever made it: the protocol of embedders.

A model folder, an ONNX file, a Python callable and stored embeddings all follow ``Embedder``.
Those that take pixels also follow ``ImageEmbedder``.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels
from unibct.data.training_classes import TrainingClasses
from unibct.models.input import InputSpec


class Embedder(Protocol):
    """Gives one vector for each image."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def dim(self) -> int:
        """The dimension of its embeddings."""
        ...

    @property
    def fingerprint(self) -> str:
        """Tells it from all embedders with other vectors."""
        ...

    @property
    def training_classes(self) -> TrainingClasses:
        """The classes that it was trained on; ``UNKNOWN_CLASSES`` if that is not known."""
        ...


class ImageEmbedder(Embedder, Protocol):
    """An embedder that takes pixels."""

    @property
    def input(self) -> InputSpec:
        """The size and channels of the images that it takes."""
        ...

    def embed(self, images: Any, *, batch_size: int = 256) -> Any:
        """Return L2-normalised embeddings of images of any size, see ``Model.embed``."""
        ...

    def embed_pixels(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return L2-normalised embeddings of one batch that already has the input's size.

        The shapes are (batch, height, width, channels) -> (batch, dim).
        """
        ...

    def raw_embeddings(self, pixels: Pixels, *, flip_test: bool = True) -> NDArray[np.float32]:
        """Return embeddings of one batch that are not normalised, see ``Model``."""
        ...

    def to(self, device: Any) -> "ImageEmbedder":
        """Move to a device, if that is possible."""
        ...
