"""What a cell's mixed galleries are worth: new queries while the gallery is backfilled.

A row is the template of a class, as in all tests of a benchmark. So the curve begins at the cross
test and ends at the new self test.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.evaluation.bootstrap import ClassDraws, sampled_mean
from unibct.evaluation.flips import flip_rates, sampled_flip_rates
from unibct.evaluation.metrics.table import TOP_1, measured_metrics, sampled_metrics
from unibct.evaluation.resolution import tar_name
from unibct.evaluation.search_test import SearchTest
from unibct.gallery.calibration import Calibration
from unibct.gallery.mixed_curve import MixedCurve, TwoTables, half_test, mixed_curve

MIXED = "mixed_galleries"  # the entry of a cell's result
# What is measured, by its name in results.
MEAN, BELOW_START, BELOW_LINE = "top-1 mean", "top-1 dip below start", "top-1 dip below line"
HALF_TOP_1, HALF_NFR = "top-1 at half", "nfr at half"


def mixed_name(merging: str) -> str:
    """Return what a mixed gallery is called in the place of a test, such as ``mixed raw``."""
    return f"mixed {merging}"


def half_tar(far: float) -> str:
    """Return the name of the TAR in a half-backfilled gallery."""
    return f"{tar_name(far)} at half"


@dataclass(frozen=True)
class MixedGallery:
    """A gallery that the new model backfills, and what it is compared with.

    Attributes:
        old_self: old queries in the old gallery.
        tables: the scores of new queries with rows of both models.
        draws: how often each class of the queries counts in each repeat.
        far: false accept rate of the TAR.
    """

    old_self: SearchTest
    tables: TwoTables
    draws: ClassDraws
    far: float

    def measured(self, order: Ints, calibration: Calibration) -> dict[str, Any]:
        """Return what a way of merging scores gives, as plain values for a file.

        Args:
            order: (rows,) the rows, the first to be embedded again first.
            calibration: puts the scores of old rows on the scale of new rows.
        """
        curve = mixed_curve(self.tables, order, calibration)
        half = half_test(self.tables, order, calibration)
        metrics = measured_metrics(half, [self.far])
        of_curve = curve_values(curve.top_1[None], curve)
        return {
            "shares": curve.shares.tolist(),
            TOP_1: curve.top_1.tolist(),
            "calibration": calibration.as_json(),
            "values": {name: float(values[0]) for name, values in of_curve.items()}
            | {
                HALF_TOP_1: metrics[TOP_1],
                half_tar(self.far): metrics[tar_name(self.far)],
                HALF_NFR: flip_rates(self.old_self, half)["nfr"],
            },
        }

    def sampled(self, order: Ints, calibration: Calibration) -> dict[str, Floats]:
        """Return (repeats,) of each of the values, for drawn classes."""
        curve = mixed_curve(self.tables, order, calibration)
        half = half_test(self.tables, order, calibration)
        metrics = sampled_metrics(half, self.draws, self.far)
        return curve_values(self._sampled_curve(curve), curve) | {
            HALF_TOP_1: metrics[TOP_1],
            half_tar(self.far): metrics[tar_name(self.far)],
            HALF_NFR: sampled_flip_rates(self.old_self, half, self.draws)["nfr"],
        }

    def _sampled_curve(self, curve: MixedCurve) -> Floats:
        """Return (repeats, points): the curve for drawn classes."""
        points = [
            sampled_mean(right, self.tables.query_classes, self.draws)
            for right in curve.right.T.astype(np.float64)
        ]
        return np.stack(points, axis=1)


def curve_values(top_1: Floats, curve: MixedCurve) -> dict[str, Floats]:
    """Return (n,) the mean of each curve, and its deepest dips below its start and below a line.

    The line goes straight from the start to the end. A dip is that at the share where the measured
    curve is deepest; drawn curves do not choose another share.

    Args:
        top_1: (n, points) the measured curve, or drawn ones.
        curve: the measured curve.
    """
    measured = curve.top_1[None]
    below_start, deepest = top_1 - top_1[:, :1], int(np.argmin(measured))
    below_line = top_1 - _line(top_1, curve.shares)
    deepest_of_line = int(np.argmin(measured - _line(measured, curve.shares)))
    return {
        MEAN: top_1.mean(axis=1),
        BELOW_START: below_start[:, deepest],
        BELOW_LINE: below_line[:, deepest_of_line],
    }


def _line(top_1: Floats, shares: Floats) -> Floats:
    """Return (n, points): the straight line between the ends of each curve."""
    return top_1[:, :1] + (top_1[:, -1:] - top_1[:, :1]) * shares
