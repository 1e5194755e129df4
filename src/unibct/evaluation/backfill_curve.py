"""Every metric of an evaluation while the gallery's images are embedded again, one by one.

New queries search a gallery in which the new model has made some rows and the old model the rest.
A row is a gallery image. In a gallery of templates the rows of a class are pooled as always, so a
template may mix both models. If the new model has made no row, this is the cross test; if it has
made all, the new self test. The second half is about rows that are never pooled across models,
and about how their scores are merged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.arrays import Floats, Ints, lowered, normalized
from unibct.errors import UserError
from unibct.evaluation.metrics import TOP_1, measured_metrics
from unibct.evaluation.mixed_gallery import RAW, STANDARDISED, Calibration, fit_calibration
from unibct.evaluation.score_table import ProductScores
from unibct.evaluation.search_test import SearchTest, scored_test, search_test
from unibct.evaluation.templates import GalleryMode, GallerySplit, class_templates

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
    """
    counts = [cut * len(order) // (CUTS - 1) for cut in range(CUTS)]
    gallery = np.array(old, dtype=np.result_type(old, new))
    points: list[dict[str, float]] = []
    done = 0
    with progress.task("backfill curve", CUTS, "cuts", weight=0.0) as advance:
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


# Top-1 while a gallery is backfilled, with the scores of old and new rows merged in one ranking.
#
# New queries search rows of the old and of the new model at once. The scores of both kinds are
# computed once; a share of rows that the new model has made only selects among them. For the best
# row no more is needed than the best score so far of each kind, so a curve takes one pass over the
# scores, with any calibration that merges them. A row is a class template by one model; in
# ``evaluation/backfill_curve.py`` a row is an image, and a template may mix both models.

POINTS = 21  # of a curve: 0, 5, …, 100 % of the rows
HALF = POINTS // 2
MERGINGS = (RAW, STANDARDISED)  # the kinds of calibration that ``fit_mergings`` fits


@dataclass(frozen=True)
class TwoTables:
    """The scores of the same queries with the same rows, made by the old and by the new model.

    Attributes:
        old_rows: (queries, rows) the queries for old rows with the rows of the old model.
        new_rows: (queries, rows) the queries for new rows with those of the new model.
        query_classes: (queries,) 0…C-1; row c is the template of class c.
    """

    old_rows: Floats
    new_rows: Floats
    query_classes: Ints

    def random_order(self, seed: int) -> Ints:
        """Return (rows,): a random order in which the new model makes the rows."""
        return np.random.default_rng([seed, 41]).permutation(self.old_rows.shape[1])


@dataclass(frozen=True)
class MixedCurve:
    """Top-1 over the share of rows that the new model has made.

    Attributes:
        shares: (points,) from 0 to 1.
        right: (queries, points) whether the best row has the query's class.
    """

    shares: Floats
    right: NDArray[np.bool_]

    @property
    def top_1(self) -> Floats:
        """(points,) the share of queries whose best row has their class."""
        return self.right.mean(axis=0)


def score_tables(cross: SearchTest, new_self: SearchTest) -> TwoTables:
    """Return the scores of two tests of the same queries in galleries of templates."""
    return TwoTables(_all_scores(cross), _all_scores(new_self), cross.query_classes)


def fit_mergings(cross: SearchTest, new_self: SearchTest) -> dict[str, Calibration]:
    """Fit each of ``MERGINGS``: raw scores, and impostors of equal mean and deviation.

    Scores that are all equal cannot be standardised; that kind is then left out.
    """
    fitted: dict[str, Calibration] = {}
    for kind in MERGINGS:
        try:
            fitted[kind] = fit_calibration(kind, cross.pairs, new_self.pairs)
        except UserError:
            continue
    return fitted


def mixed_curve(tables: TwoTables, order: Ints, calibration: Calibration) -> MixedCurve:
    """Search the gallery at each share of rows that the new model has made.

    Args:
        tables: the scores of both kinds.
        order: (rows,) the rows, the first to be embedded again first.
        calibration: puts the scores of old rows on the scale of new rows. It is strictly
            monotone, so the best old row stays the best old row.
    """
    counts = np.arange(POINTS) * len(order) // (POINTS - 1)
    is_mate = tables.query_classes[:, None] == order
    old, new = tables.old_rows[:, order], tables.new_rows[:, order]
    best: list[Floats] = []
    for chosen in (is_mate, ~is_mate):
        remade = _best_so_far(np.where(chosen, new, -np.inf))[:, counts]
        not_remade = _best_so_far(np.where(chosen, old, -np.inf)[:, ::-1])[:, len(order) - counts]
        scaled = calibration(np.maximum(not_remade, -1))
        calibrated = np.where(not_remade > -np.inf, scaled, -np.inf)
        best.append(np.maximum(remade, calibrated))
    mates, others = best
    return MixedCurve(counts / len(order), mates > others)


def half_test(tables: TwoTables, order: Ints, calibration: Calibration) -> SearchTest:
    """Return the test in the gallery of which the new model has made the first half of an order."""
    remade = np.zeros(len(order), dtype=bool)
    remade[order[: HALF * len(order) // (POINTS - 1)]] = True
    scores = np.where(remade, tables.new_rows, calibration(tables.old_rows))
    return scored_test(scores, tables.query_classes)


def _all_scores(test: SearchTest) -> Floats:
    assert isinstance(test.scores, ProductScores), "the gallery's entries are templates"
    scores = test.scores[: len(test.query_classes)]
    mates = np.arange(len(scores)), test.query_classes
    scores[mates] = lowered(scores[mates])
    return scores


def _best_so_far(scores: Floats) -> Floats:
    """Return (queries, rows + 1): the best of the first n scores, for every n."""
    first = np.full((len(scores), 1), -np.inf)
    return np.maximum.accumulate(np.hstack([first, scores]), axis=1)
