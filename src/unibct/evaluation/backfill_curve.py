"""Every metric of an evaluation while the gallery's images are embedded again, one by one.

New queries search a gallery in which the new model has made some rows and the old model the rest.
A row is a gallery image. In a gallery of templates the rows of a class are pooled as always, so a
template may mix both models. If the new model has made no row, this is the cross test; if it has
made all, the new self test. ``gallery/mixed_curve.py`` is about rows that are never pooled across
models, and about how their scores are merged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Floats, Ints, normalized
from unibct.evaluation.gallery_split import GalleryMode, GallerySplit
from unibct.evaluation.metrics.table import TOP_1, measured_metrics
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import class_templates
from unibct.progress import Progress, Silent

CUTS = 22


@dataclass(frozen=True)
class BackfillCurve:
    """Every metric over the share of rows that the new model has made, in one order of rows.

    Attributes:
        shares: (cuts,) from 0 to 1.
        values: metric -> (cuts,) values.
        old_self: metric -> M(old→old), which the curve should never fall below.
    """

    shares: Floats
    values: dict[str, Floats]
    old_self: dict[str, float]

    def mean(self, metric: str) -> float:
        """Return the plain mean over the curve."""
        return float(np.mean(self.values[metric]))

    def dip(self, metric: str) -> float:
        """Return the deepest dip: the smallest M − M(old→old) on the curve."""
        return float(np.min(self.values[metric])) - self.old_self[metric]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines; ``mean`` and ``dip`` are those of top-1."""
        headline = TOP_1 if TOP_1 in self.values else next(iter(self.values))
        curves: dict[str, Any] = {name: curve.tolist() for name, curve in self.values.items()}
        return (
            {"shares": self.shares.tolist()}
            | curves
            | {
                "mean": self.mean(headline),
                "dip": self.dip(headline),
                "means": {metric: self.mean(metric) for metric in self.values},
                "dips": {metric: self.dip(metric) for metric in self.values},
            }
        )


def row_orders(old: Floats, split: GallerySplit, *, seed: int = 0) -> dict[str, Ints]:
    """Return the orders in which the gallery's rows are embedded again.

    Args:
        old: (images, dim) the old model's embeddings of all test images.
        split: which images are in the gallery.
        seed: chooses the random order.

    Returns:
        name -> (gallery images,) places in ``split.gallery``: ``random``, and ``farthest`` from
        the class mean first.
    """
    rows = normalized(old[split.gallery])
    means = class_templates(rows, split.gallery_labels)[split.gallery_labels]
    distance = 1 - np.einsum("ij,ij->i", rows, means)
    return {
        "random": np.random.default_rng([seed, 5]).permutation(len(rows)),
        "farthest": np.argsort(-distance, kind="stable"),
    }


def backfill_curve(
    old: Floats,
    new: Floats,
    split: GallerySplit,
    order: Ints,
    *,
    far: float,
    old_self: dict[str, float],
    mode: GalleryMode = "templates",
    progress: Progress | None = None,
) -> BackfillCurve:
    """Measure new queries in a gallery that is backfilled in the given order.

    Args:
        old: (images, dim) the old model's embeddings of all test images.
        new: (images, dim) the new model's.
        split: which images are queries and which are in the gallery.
        order: (gallery images,) places in ``split.gallery``, the first to be embedded again first.
        far: false accept rate of the TAR.
        old_self: metric -> M(old→old).
        mode: the gallery's entries are templates or images.
        progress: reports progress per cut.
    """
    counts = [cut * len(order) // (CUTS - 1) for cut in range(CUTS)]
    gallery = np.array(old, dtype=np.result_type(old, new))
    points: list[dict[str, float]] = []
    done = 0
    with (progress or Silent()).task("backfill curve", CUTS, "cuts", weight=0.0) as advance:
        for count in counts:
            remade = split.gallery[order[done:count]]
            gallery[remade] = new[remade]
            done = count
            points.append(measured_metrics(search_test(new, gallery, split, mode=mode), [far]))
            advance(1)
    return BackfillCurve(
        np.array(counts) / len(order),
        {metric: np.array([point[metric] for point in points]) for metric in points[0]},
        old_self,
    )
