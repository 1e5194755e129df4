"""Top-1 while a gallery is backfilled, with the scores of old and new rows merged in one ranking.

New queries search rows of the old and of the new model at once. The scores of both kinds are
computed once; a share of rows that the new model has made only selects among them. For the best
row no more is needed than the best score so far of each kind, so a curve takes one pass over the
scores, with any calibration that merges them. A row is a class template by one model; in
``evaluation/backfill_curve.py`` a row is an image, and a template may mix both models.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, lowered
from unibct.errors import UserError
from unibct.evaluation.score_table import ProductScores
from unibct.evaluation.search_test import SearchTest, scored_test
from unibct.gallery.calibration import RAW, STANDARDISED, Calibration, fit_calibration

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
