"""Whether an exported file gives the same embeddings as the model in torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.data.loader import unread_pixels
from unibct.data.readers.table import open_images
from unibct.export.graph import Exportable
from unibct.export.session import ExportedModel

IMAGES = 1000
LOWEST_COSINE = 0.99999
_BATCH = 64


@dataclass(frozen=True)
class Agreement:
    """The cosines between the embeddings of the file and of the model.

    Attributes:
        images: number of images.
        lowest: the smallest cosine.
        mean: their mean.
        worst: the image with the smallest cosine.
    """

    images: int
    lowest: float
    mean: float
    worst: str

    @property
    def is_enough(self) -> bool:
        """Whether the file may stand for the model."""
        return self.lowest >= LOWEST_COSINE


def sample_pixels(
    model: Exportable, images: ImageSet | None, count: int = IMAGES
) -> tuple[Pixels, tuple[str, ...]]:
    """Return ``count`` images in the form that a model takes, and their names.

    Args:
        model: the model.
        images: taken from evenly. What is missing is made up half by embedded images (characters)
            and half by noise.
        count: number of images.
    """
    parts: list[Pixels] = []
    names: list[str] = []
    for source, wanted in ((images, count), (open_images("glyphs:test"), count // 2)):
        wanted = min(wanted, count - len(names))
        if source is None or wanted < 1:
            continue
        rows = np.unique(np.linspace(0, len(source) - 1, wanted).astype(np.int64))
        parts += unread_pixels(source, model.input.frame).batches(rows, _BATCH)
        names += [source.ids[row] for row in rows.tolist()]
    missing = count - len(names)
    noise = np.random.default_rng(0).integers(0, 256, (missing, *model.input.frame.shape))
    parts.append(noise.astype(np.uint8))
    names += [f"noise image {number}" for number in range(missing)]
    return np.concatenate(parts), tuple(names)


def embeddings_in_torch(model: Exportable, pixels: Pixels) -> NDArray[np.float32]:
    """Map (images, height, width, channels) -> (images, dim), a batch at a time."""
    starts = range(0, len(pixels), _BATCH)
    return np.concatenate([model.embed_pixels(pixels[i : i + _BATCH]) for i in starts])


def agreement(
    model: Exportable, exported: ExportedModel, pixels: Pixels, names: tuple[str, ...]
) -> Agreement:
    """Compare the embeddings of the same images; NaN counts as a cosine of −1."""
    ours, theirs = embeddings_in_torch(model, pixels), exported.embed_pixels(pixels)
    pairs = (vectors.astype(np.float64) for vectors in (ours, theirs))
    ours, theirs = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in pairs)
    cosines = np.nan_to_num((ours * theirs).sum(axis=1), nan=-1.0)
    worst = int(cosines.argmin())
    return Agreement(len(cosines), float(cosines[worst]), float(cosines.mean()), names[worst])
