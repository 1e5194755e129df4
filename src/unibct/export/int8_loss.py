"""What the int8 variant loses in a search, measured beside the exact file."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.embeddings.extraction import embed_images
from unibct.errors import UserError
from unibct.evaluation.criterion import Criterion, compare_tests
from unibct.evaluation.gallery_split import GallerySplit, split_gallery
from unibct.evaluation.resolution import headline_far
from unibct.evaluation.search_test import search_test
from unibct.export.graph import Exportable
from unibct.export.session import ExportedModel
from unibct.models.embedder import Embedder
from unibct.progress import Progress


@dataclass(frozen=True)
class Int8Loss:
    """A search with int8 queries, against the same search with exact queries.

    Attributes:
        gallery: whose rows were searched: ``old``, or ``exact``, the exported file's own.
        differences: of each metric, int8 minus exact, with its interval.
        lowest_cosine: the smallest cosine between an int8 and an exact embedding.
        mean_cosine: their mean.
        speed: images per second, int8 over exact, measured one after the other.
        queries: number of queries.
    """

    gallery: str
    differences: tuple[Criterion, ...]
    lowest_cosine: float
    mean_cosine: float
    speed: float
    queries: int

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "gallery": self.gallery,
            "queries": self.queries,
            "lowest_cosine": self.lowest_cosine,
            "mean_cosine": self.mean_cosine,
            "speed": self.speed,
            "metrics": [
                {
                    "metric": criterion.metric,
                    "exact": criterion.old_self,
                    "int8": criterion.cross,
                    "difference": criterion.difference,
                    "interval": [criterion.low, criterion.high],
                }
                for criterion in self.differences
            ],
        }


def calibration_split(images: ImageSet, seed: int = 0) -> GallerySplit:
    """Return which images are queries; the others, a quarter of each class, calibrate int8."""
    if len(images.class_names) < 2:
        raise UserError(f"{images.name} has one class only; a search test needs at least two")
    return split_gallery(images.labels, seed=seed)


def measure_int8_loss(
    files: tuple[ExportedModel, ExportedModel],
    model: Exportable,
    images: ImageSet,
    *,
    old: Embedder | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Int8Loss:
    """Search a gallery with the exact and the int8 queries of the same images.

    Args:
        files: the exact file and the int8 one.
        model: the model that they were made from.
        images: images with classes.
        old: whose gallery is searched: the cross test. By default the exact file's own.
        seed: chooses the gallery's images and the bootstrap samples.
        progress: reports progress per image.
    """
    split = calibration_split(images, seed)
    pixels = read_pixels(images, model.input.frame, progress=progress)
    order = np.arange(len(images))
    vectors: list[NDArray[np.float32]] = []
    seconds: list[float] = []
    for file in files:
        parts: list[NDArray[np.float32]] = []
        spent = 0.0
        for batch in pixels.batches(order, 64):
            begin = time.perf_counter()
            parts.append(file.embed_pixels(batch))
            spent += time.perf_counter() - begin
        vectors.append(np.concatenate(parts))
        seconds.append(spent)
    exact, int8 = vectors
    gallery = exact if old is None else embed_images(old, images, progress=progress).vectors
    if gallery.shape[1] != exact.shape[1]:
        raise UserError(
            f"the old model has dimension {gallery.shape[1]}, the exported one {exact.shape[1]}: "
            "one cannot search the other; a model with a projection into the old space can, as "
            "'MODEL?space=old'"
        )
    tests = [search_test(queries, gallery, split) for queries in (exact, int8)]
    far = headline_far(split.compared_classes)
    cosines = (exact.astype(np.float64) * int8).sum(axis=1)
    return Int8Loss(
        gallery="exact" if old is None else "old",
        differences=compare_tests(tests[0], tests[1], far=far, seed=seed),
        lowest_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        speed=seconds[0] / seconds[1],
        queries=len(split.query),
    )
