"""Galleries with rows of both models: what merges their scores best, and what a backfill changes.

A gallery that is partly backfilled is searched in one ranking. A calibration is a strictly monotone
map of new→old scores onto the scale of new→new scores, so that this ranking can hold both kinds of
rows. Which kind of map ranks best differs by pair of models: ``choose_calibration`` tests it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.arrays import Floats, Ints, lowered, normalized
from unibct.errors import UserError
from unibct.evaluation.identification import block_precisions, mate_ranks
from unibct.evaluation.metrics import TOP_1, measured_metrics
from unibct.evaluation.score_map import KINDS, ScoreMap, fit_score_map
from unibct.evaluation.score_table import ProductScores, lowered_scores, mate_places
from unibct.evaluation.search_test import (
    ImageSearch,
    ScoredPairs,
    SearchTest,
    image_test,
    scored_test,
    search_test,
)
from unibct.evaluation.templates import GalleryMode, GallerySplit, class_templates

Mask = NDArray[np.bool_]

_SCORES_AT_ONCE = 2_000_000


class TwoKinds(NamedTuple):
    """The same gallery images as rows of both models, searched by the same queries."""

    cross: ImageSearch  # queries for old rows (in the old space) and old rows
    new_self: ImageSearch  # new queries and new rows

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
        return TwoKinds(*(side.part(queries, rows) for side in self))

    def of_classes(self, chosen: Mask) -> "TwoKinds":
        """Return the queries and rows of some classes; ``chosen`` is (classes,)."""
        queries = np.flatnonzero(chosen[self.cross.query_labels])
        return self.part(queries, np.flatnonzero(chosen[self.cross.gallery_labels]))

    def pairs(self) -> tuple[ScoredPairs, ScoredPairs]:
        """Return the scores of both kinds."""
        return image_test(self.cross).pairs, image_test(self.new_self).pairs


@dataclass(frozen=True)
class SearchQuality:
    """How good a ranking of single images is."""

    top_1: float  # the share of queries whose first row is of their class
    mean_average_precision: float  # over the ranking of all rows


def ranking_quality(scores: Floats, query_labels: Ints, row_labels: Ints) -> tuple[Floats, Floats]:
    """Return (queries,): whether the first row is a mate, and the average precision.

    ``scores`` are (queries, rows), and each query has at least one mate. A row of another class
    that scores exactly as high as a mate counts as better.
    """
    first = mate_ranks(scores, query_labels, row_labels) == 0
    places = mate_places(query_labels, row_labels)
    return first.astype(np.float64), block_precisions(scores.copy(), *places)


def mixed_quality(
    kinds: TwoKinds, calibrations: Mapping[str, ScoreMap], remade: Iterable[Mask]
) -> dict[str, SearchQuality]:
    """Return what each calibration is worth: the mean over queries and some mixed galleries.

    Each entry of ``remade`` is a gallery: (rows,) which of its rows the new model has made.
    """
    masks = list(remade)
    labels, row_labels = kinds.cross.query_labels, kinds.cross.gallery_labels
    sums = {name: np.zeros(2) for name in calibrations}
    step = max(1, _SCORES_AT_ONCE // kinds.rows)
    for start in range(0, kinds.queries, step):
        part = slice(start, start + step)
        old_scores, new_scores = (
            lowered_scores(side.query[part], labels[part], side.gallery, row_labels)[0]
            for side in kinds
        )
        for name, calibration in calibrations.items():
            calibrated = calibration(old_scores)
            for mask in masks:
                scores = np.where(mask, new_scores, calibrated)
                measured = ranking_quality(scores, labels[part], row_labels)
                sums[name] += [float(values.sum()) for values in measured]
    count = kinds.queries * len(masks)
    return {name: SearchQuality(*(values / count).tolist()) for name, values in sums.items()}


# Which calibration ranks a mixed gallery best: chosen on some classes, reported on others.

REMADE_SHARE = 0.5  # of the rows in the galleries that decide
GALLERIES = 5  # of these random galleries
_MOST_PAIRS = 5_000_000  # queries × rows of a half of the classes


@dataclass(frozen=True)
class CalibrationChoice:
    """The calibration of a pair of models, and what decided about it."""

    calibration: ScoreMap  # of the chosen kind, fitted on all classes
    # kind -> how well it ranks the half of the classes that decided, and on which it was fitted
    chosen_on: dict[str, SearchQuality]
    reported_on: dict[str, SearchQuality]  # the same calibrations on the other half of the classes
    classes: tuple[int, int]  # how many classes each half has

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {
            "choice": self.calibration.as_json(),
            "chosen_by": "mean of top-1 and mAP",
            "remade_share": REMADE_SHARE,
            "galleries": GALLERIES,
            "chosen_on": {name: asdict(quality) for name, quality in self.chosen_on.items()},
            "reported_on": {name: asdict(quality) for name, quality in self.reported_on.items()},
            "classes": {"chosen_on": self.classes[0], "reported_on": self.classes[1]},
        }


def choose_calibration(kinds: TwoKinds, *, seed: int = 0) -> CalibrationChoice:
    """Choose among the kinds of calibration by half-backfilled galleries of single images.

    The classes are halved. On one half each kind is fitted and measured; the best is chosen, or the
    simplest of equally good ones. The other half shows what the choice is worth, and does not
    influence it. The returned calibration has the chosen kind, and is fitted on all classes.
    ``seed`` draws the halves and the rows that the new model has made.
    """
    halves = _halves(kinds, seed)
    calibrations = fitted_kinds(KINDS, *halves[0].pairs())
    measured = [
        mixed_quality(half, calibrations, _galleries(half.rows, [seed, 22, number]))
        for number, half in enumerate(halves)
    ]

    def worth(kind: str) -> float:
        quality = measured[0][kind]
        return round((quality.top_1 + quality.mean_average_precision) / 2, 6)

    # The best that can be fitted on all classes; raw scores always can.
    whole = kinds.pairs()
    ranked = sorted(measured[0], key=worth, reverse=True)
    best = next(filter(None, (fitted_kinds([kind], *whole) for kind in ranked)))
    classes = [len(np.unique(half.cross.gallery_labels)) for half in halves]
    return CalibrationChoice(
        next(iter(best.values())),
        chosen_on=measured[0],
        reported_on=measured[1],
        classes=(classes[0], classes[1]),
    )


def fitted_kinds(
    kinds: Iterable[str], cross: ScoredPairs, new_self: ScoredPairs
) -> dict[str, ScoreMap]:
    """Fit a calibration of each kind, but those for which there are too few different scores."""
    fitted: dict[str, ScoreMap] = {}
    for kind in kinds:
        try:
            fitted[kind] = fit_score_map(cross, new_self, kind)
        except UserError:
            continue
    return fitted


def _halves(kinds: TwoKinds, seed: int) -> list[TwoKinds]:
    """Halve the classes, and draw queries where there are too many."""
    rng = np.random.default_rng([seed, 21])
    used = np.unique(kinds.cross.query_labels)
    if len(used) < 4:
        raise UserError(
            f"{len(used)} classes with queries are too few to choose a calibration: half of them "
            "decide and the others check; give 4 or more"
        )
    classes = np.unique(kinds.cross.gallery_labels)
    others = np.setdiff1d(classes, used)
    order = np.concatenate([rng.permutation(used), rng.permutation(others)])
    in_first = np.zeros(int(classes.max()) + 1, dtype=bool)
    in_first[order[::2]] = True
    halves: list[TwoKinds] = []
    for half in [kinds.of_classes(chosen) for chosen in (in_first, ~in_first)]:
        most = max(100, _MOST_PAIRS // half.rows)
        drawn = np.arange(half.queries)
        if half.queries > most:
            drawn = np.sort(rng.choice(half.queries, most, replace=False))
        halves.append(half.part(drawn, np.arange(half.rows)))
    return halves


def _galleries(rows: int, seed: list[int]) -> list[Mask]:
    """Draw which rows the new model has made, for several galleries."""
    rng = np.random.default_rng(seed)
    count = round(REMADE_SHARE * rows)
    return [rng.permutation(rows) < count for _ in range(GALLERIES)]


# Metrics while the new model embeds the gallery again, row by row. If it has made no row, this is
# the cross test; if it has made all, the new self test.

CUTS = 22  # of a curve of images
POINTS = 21  # of a curve of templates: 0, 5, …, 100 % of the rows
HALF = POINTS // 2


@dataclass(frozen=True)
class BackfillCurve:
    """Metrics over the share of rows that the new model has made, in one order of rows."""

    shares: Floats  # (cuts,) from 0 to 1
    values: dict[str, Floats]  # metric -> (cuts,) values
    old_self: dict[str, float]  # metric -> M(old→old), which the curve should never fall below

    def mean(self, metric: str) -> float:
        """Return the plain mean over the curve."""
        return float(np.mean(self.values[metric]))

    def dip(self, metric: str) -> float:
        """Return the deepest dip: the smallest M − M(old→old) on the curve."""
        return float(np.min(self.values[metric])) - self.old_self[metric]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines; ``mean`` and ``dip`` are those of top-1."""
        headline = TOP_1 if TOP_1 in self.values else next(iter(self.values))
        return {
            "shares": self.shares.tolist(),
            **{name: curve.tolist() for name, curve in self.values.items()},
            "mean": self.mean(headline),
            "dip": self.dip(headline),
            "means": {metric: self.mean(metric) for metric in self.values},
            "dips": {metric: self.dip(metric) for metric in self.values},
        }


def row_orders(old: Floats, split: GallerySplit, *, seed: int = 0) -> dict[str, Ints]:
    """Return orders in which the gallery's images are embedded again.

    Each is (gallery images,) places in ``split.gallery``: ``random``, and ``farthest`` from the
    class mean first, by the old model's (images, dim) embeddings of all test images.
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
    """Measure new queries in a gallery whose images are embedded again in the given order.

    In a gallery of templates the images of a class are pooled as always, so that a template may mix
    both models. ``old`` and ``new`` are (images, dim) embeddings of all test images, ``order`` is
    (gallery images,) places in ``split.gallery``.
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


class MixedScores(NamedTuple):
    """The scores of the same queries with templates of both models, which are never pooled.

    The scores of both kinds are computed once; which rows the new model has made only selects
    among them. Row c is the template of class c.
    """

    old_rows: Floats  # (queries, rows) queries for old rows with rows of the old model
    new_rows: Floats  # (queries, rows) queries for new rows with those of the new model
    query_classes: Ints  # (queries,)

    @staticmethod
    def of_tests(cross: SearchTest, new_self: SearchTest) -> "MixedScores":
        """Return the scores of two tests of the same queries in galleries of templates."""
        return MixedScores(_all_scores(cross), _all_scores(new_self), cross.query_classes)

    def random_order(self, seed: int) -> Ints:
        """Return (rows,): a random order in which the new model makes the rows."""
        return np.random.default_rng([seed, 41]).permutation(self.old_rows.shape[1])

    def right(self, order: Ints, calibration: ScoreMap) -> Mask:
        """Return (queries, ``POINTS``): whether the best row has the query's class.

        At each point the new model has made the first rows of an order. For the best row no more is
        needed than the best score so far of each kind, so this takes one pass over the scores: as
        the calibration is strictly monotone, the best old row stays the best old row.
        """
        counts = _first_rows(order)
        is_mate = self.query_classes[:, None] == order
        old, new = self.old_rows[:, order], self.new_rows[:, order]
        best: list[Floats] = []
        for chosen in (is_mate, ~is_mate):
            remade = _best_so_far(np.where(chosen, new, -np.inf))[:, counts]
            older = _best_so_far(np.where(chosen, old, -np.inf)[:, ::-1])[:, len(order) - counts]
            scaled = calibration(np.maximum(older, -1))
            best.append(np.maximum(remade, np.where(older > -np.inf, scaled, -np.inf)))
        mates, others = best
        return mates > others

    def half_test(self, order: Ints, calibration: ScoreMap) -> SearchTest:
        """Return the test in the gallery of which the new model has made half of the rows."""
        remade = np.zeros(len(order), dtype=bool)
        remade[order[: _first_rows(order)[HALF]]] = True
        scores = np.where(remade, self.new_rows, calibration(self.old_rows))
        return scored_test(scores, self.query_classes)


def shares_of(order: Ints) -> Floats:
    """Return (``POINTS``,): the shares of rows that the new model has made."""
    return _first_rows(order) / len(order)


def _first_rows(order: Ints) -> Ints:
    """Return (``POINTS``,): how many rows the new model has made at each point."""
    return np.arange(POINTS) * len(order) // (POINTS - 1)


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
