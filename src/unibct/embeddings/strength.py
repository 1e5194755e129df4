"""How strong a model is: its recall@1 beside that of raw pixels, which need no model at all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.data.decoding import Pixels
from unibct.embeddings.recall import recall_at_1, sample_classes

SAMPLE_IMAGES = 2_000  # recall@1 then takes a second or two, and is known to about a point
_LARGEST_SIDE = 32  # of the images whose pixels are compared
_NEEDED_GAIN = 0.1  # of the way from raw pixels to a recall of 1


@dataclass(frozen=True)
class Strength:
    """Recall@1 of a model, beside that of raw pixels on the same images.

    Attributes:
        recall_at_1: of the model's embeddings.
        pixel_recall_at_1: of the pixels, see ``pixel_vectors``.
        pixels: what stands for them in texts; finished vectors may be trained on instead.
    """

    recall_at_1: float
    pixel_recall_at_1: float
    pixels: str = "raw pixels"

    @property
    def too_weak(self) -> bool:
        """Whether the model goes less than a tenth of the way from raw pixels to perfect."""
        gain = self.recall_at_1 - self.pixel_recall_at_1
        return gain < _NEEDED_GAIN * (1 - self.pixel_recall_at_1)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "recall_at_1": self.recall_at_1,
            "pixel_recall_at_1": self.pixel_recall_at_1,
            "too_weak": self.too_weak,
        }

    def __str__(self) -> str:
        return (
            f"recall@1 {100 * self.recall_at_1:.1f} % "
            f"({self.pixels} {100 * self.pixel_recall_at_1:.1f} %)"
        )


def pixel_vectors(pixels: Pixels) -> NDArray[np.float32]:
    """Return the pixels of images as vectors, whose cosine is the correlation of two images.

    Args:
        pixels: (images, height, width) or (images, height, width, channels) uint8.

    Returns:
        (images, values): each image shrunk to at most 32×32 by averaging, less its own mean.
    """
    import torch
    import torch.nn.functional as F

    images = torch.from_numpy(pixels.astype(np.float32))
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    height, width = (min(side, _LARGEST_SIDE) for side in images.shape[2:])
    vectors = F.adaptive_avg_pool2d(images, (height, width)).flatten(1).numpy()
    return vectors - vectors.mean(axis=1, keepdims=True)


def model_strength(
    vectors: Floats, labels: Ints, read: Callable[[Ints], Pixels], *, seed: int = 0
) -> Strength | None:
    """Measure a model on a sample of images; None if no class has two images.

    Args:
        vectors: (images, dim) the model's embeddings.
        labels: (images,) integers.
        read: returns the pixels of some rows.
        seed: chooses the sample: whole classes, about ``SAMPLE_IMAGES`` images.
    """
    rows = sample_classes(labels, SAMPLE_IMAGES, seed=seed)
    if not len(rows):
        return None
    return Strength(
        recall_at_1(vectors[rows], labels[rows]),
        recall_at_1(pixel_vectors(read(rows)), labels[rows]),
    )
