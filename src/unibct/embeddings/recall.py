"""Recall@1: how often the nearest other image has the same class, and a sample to measure it on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, checked_embeddings, checked_labels, lowered, normalized
from unibct.data.decoding import Pixels
from unibct.errors import UserError

_SCORES_AT_ONCE = 16_000_000


def recall_at_1(vectors: Any, labels: Any) -> float:
    """Return the share of images whose nearest other image by cosine has the same class.

    Images that are the only one of their class are found by others, but ask nothing themselves.
    An image of another class that is exactly as near as the mate counts as nearer. The shapes are
    (images, dim), and (images,) integers.
    """
    rows = normalized(checked_embeddings(vectors, "vectors"))
    classes = checked_labels(labels, len(rows))
    _, places, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    asking = np.flatnonzero(sizes[places] > 1)
    if not len(asking):
        raise UserError("recall@1 needs a class with at least two images")
    correct = 0
    block = max(1, _SCORES_AT_ONCE // len(rows))
    for begin in range(0, len(asking), block):
        queries = asking[begin : begin + block]
        scores = rows[queries] @ rows.T
        scores[np.arange(len(queries)), queries] = -np.inf
        mates = classes[queries][:, None] == classes[None, :]
        nearest_mate = np.where(mates, scores, -np.inf).max(axis=1)
        nearest_other = np.where(mates, -np.inf, scores).max(axis=1)
        correct += int((lowered(nearest_mate) > nearest_other).sum())
    return correct / len(asking)


def sample_classes(labels: Any, at_most: int, *, seed: int = 0) -> Ints:
    """Return the sorted rows of whole classes, drawn until there are ``at_most`` images.

    Classes of one image are left out. Of a class that would be more than half of the sample, fewer
    images are drawn, so that there are always two classes. ``labels`` are (images,) integers; the
    seed chooses the classes, unless all of them fit.
    """
    classes = checked_labels(labels)
    _, numbers = np.unique(classes, return_inverse=True)
    sizes = np.bincount(numbers)
    rng, largest, images = np.random.default_rng(seed), max(at_most // 2, 2), 0
    by_class = np.argsort(rng.permutation(len(sizes))[numbers], kind="stable")
    chosen: list[Ints] = []
    for rows in np.split(by_class, np.flatnonzero(np.diff(numbers[by_class])) + 1):
        if len(rows) > largest:
            rows = rng.permutation(rows)[:largest]
        if len(rows) > 1 and (len(chosen) < 2 or images + len(rows) <= at_most):
            chosen.append(rows)
            images += len(rows)
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


# How strong a model is: its recall@1 beside that of raw pixels, which need no model at all.

SAMPLE_IMAGES = 2_000  # recall@1 then takes a second or two, and is known to about a point
_LARGEST_SIDE = 32  # of the images whose pixels are compared
_NEEDED_GAIN = 0.1  # of the way from raw pixels to a recall of 1


@dataclass(frozen=True)
class ModelRecall:
    """Recall@1 of a model, beside that of raw pixels on the same images."""

    recall_at_1: float  # of the model's embeddings
    pixel_recall_at_1: float  # of the pixels, see ``pixel_vectors``
    pixels: str = "raw pixels"  # in texts; finished vectors may be trained on instead

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

    (images, height, width) or (images, height, width, channels) uint8 -> (images, values): each
    image shrunk to at most 32×32 by averaging, less its own mean.
    """
    import torch
    import torch.nn.functional as F

    images = torch.from_numpy(pixels.astype(np.float32))
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    height, width = (min(side, _LARGEST_SIDE) for side in images.shape[2:])
    vectors = F.adaptive_avg_pool2d(images, (height, width)).flatten(1).numpy()
    return vectors - vectors.mean(axis=1, keepdims=True)


def model_recall(
    vectors: Floats, labels: Ints, read: Callable[[Ints], Pixels], *, seed: int = 0
) -> ModelRecall | None:
    """Measure a model on a sample of images; None if no class has two images.

    The shapes are (images, dim) and (images,); ``read`` returns the pixels of some rows. The seed
    chooses the sample: whole classes, about ``SAMPLE_IMAGES`` images.
    """
    rows = sample_classes(labels, SAMPLE_IMAGES, seed=seed)
    if not len(rows):
        return None
    return ModelRecall(
        recall_at_1(vectors[rows], labels[rows]),
        recall_at_1(pixel_vectors(read(rows)), labels[rows]),
    )
