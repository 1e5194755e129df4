"""How well one search ranks rows of two kinds: a gallery that is partly backfilled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, lowered
from unibct.evaluation.metrics.identification import mate_ranks
from unibct.evaluation.metrics.ranking import block_precisions
from unibct.evaluation.score_table import mate_places
from unibct.evaluation.search_test import ImageSearch
from unibct.gallery.calibration import Calibration

_SCORES_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class TwoKinds:
    """The same gallery images as rows of both models, searched by the same new queries.

    Attributes:
        cross: new queries (in the old space, if the dimensions differ) and old rows.
        new_self: new queries and new rows.
    """

    cross: ImageSearch
    new_self: ImageSearch

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return len(self.cross.query_labels)

    @property
    def rows(self) -> int:
        """How many rows a gallery has, of both kinds together."""
        return len(self.cross.gallery_labels)

    def part(self, queries: Ints, rows: Ints) -> "TwoKinds":
        """Return some queries and some rows, given by their places."""
        return TwoKinds(self.cross.part(queries, rows), self.new_self.part(queries, rows))

    def of_classes(self, chosen: NDArray[np.bool_]) -> "TwoKinds":
        """Return the queries and rows of some classes.

        Args:
            chosen: (classes,) which.
        """
        queries = np.flatnonzero(chosen[self.cross.query_labels])
        return self.part(queries, np.flatnonzero(chosen[self.cross.gallery_labels]))


@dataclass(frozen=True)
class SearchQuality:
    """How good a ranking of single images is.

    Attributes:
        top_1: the share of queries whose first row is of their class.
        mean_average_precision: over the ranking of all rows.
    """

    top_1: float
    mean_average_precision: float


def ranking_quality(scores: Floats, query_labels: Ints, row_labels: Ints) -> tuple[Floats, Floats]:
    """Return (queries,): whether the first row is a mate, and the average precision.

    A row of another class that scores exactly as high as a mate counts as better.

    Args:
        scores: (queries, rows).
        query_labels: (queries,).
        row_labels: (rows,), with at least one mate for each query.
    """
    first = mate_ranks(scores, query_labels, row_labels) == 0
    places = mate_places(query_labels, row_labels)
    return first.astype(np.float64), block_precisions(scores.copy(), *places)


def mixed_quality(
    kinds: TwoKinds, calibrations: Mapping[str, Calibration], remade: Iterable[NDArray[np.bool_]]
) -> dict[str, SearchQuality]:
    """Measure new queries in galleries of which the new model has made some rows.

    Args:
        kinds: the queries, and the rows of both kinds.
        calibrations: by any name; each puts the scores of old rows on the scale of new rows.
        remade: some galleries, each (rows,): which of its rows the new model has made.

    Returns:
        the name of a calibration -> the mean over queries and galleries.
    """
    masks = list(remade)
    labels, row_labels = kinds.cross.query_labels, kinds.cross.gallery_labels
    sums = {name: np.zeros(2) for name in calibrations}
    step = max(1, _SCORES_AT_ONCE // kinds.rows)
    for start in range(0, kinds.queries, step):
        part = slice(start, start + step)
        mates = mate_places(labels[part], row_labels)
        old_scores, new_scores = (
            side.query[part] @ side.gallery.T for side in (kinds.cross, kinds.new_self)
        )
        for products in (old_scores, new_scores):
            products[mates] = lowered(products[mates])
        for name, calibration in calibrations.items():
            calibrated = calibration(old_scores)
            for mask in masks:
                scores = np.where(mask, new_scores, calibrated)
                measured = ranking_quality(scores, labels[part], row_labels)
                sums[name] += [float(values.sum()) for values in measured]
    count = kinds.queries * len(masks)
    return {name: SearchQuality(*(values / count).tolist()) for name, values in sums.items()}
