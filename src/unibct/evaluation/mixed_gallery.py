"""The log odds of a mate as a straight line over the score: logistic regression of counts.

Platt, "Probabilistic outputs for support vector machines" (1999), by the Newton steps of Lin, Lin
and Weng (2007). Platt's targets, a little inside 0 and 1, keep the line finite even if every mate
scores higher than every impostor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, lowered
from unibct.errors import UserError
from unibct.evaluation.identification import block_precisions, mate_ranks
from unibct.evaluation.impostors import Impostors
from unibct.evaluation.score_map import ScoreMap, fit_score_map
from unibct.evaluation.score_table import mate_places
from unibct.evaluation.search_test import ImageSearch, ScoredPairs, image_test

Doubles: TypeAlias = NDArray[np.float64]

_STEPS = 100
_SMALLEST_STEP = 1e-9
_LONGEST_STEP = 2.0  # of any score's log odds: where all is certain, the curvature says nothing


def fit_log_odds(scores: Doubles, mates: Doubles, others: Doubles) -> tuple[float, float]:
    """Return slope and shift: log(P(mate) / P(other)) = slope · score + shift.

    Args:
        scores: (n,) different scores.
        mates: (n,) how many pairs of the same class have each score.
        others: (n,) how many pairs of different classes have it.
    """
    totals = mates.sum(), others.sum()
    if not (totals[0] > 0 and totals[1] > 0):
        raise UserError("the odds of a mate need pairs of the same and of different classes")
    targets = (totals[0] + 1) / (totals[0] + 2), 1 / (totals[1] + 2)
    weights = mates + others
    wanted = mates * targets[0] + others * targets[1]
    centre = float(np.average(scores, weights=weights))
    spread = float(np.sqrt(np.average((scores - centre) ** 2, weights=weights))) or 1.0
    inputs: Doubles = np.stack([(scores - centre) / spread, np.ones(len(scores))], axis=1)
    line: Doubles = np.array([0.0, np.log((totals[0] + 1) / (totals[1] + 1))])
    loss = _loss(inputs @ line, weights, wanted)
    for _ in range(_STEPS):
        share: Doubles = 1 / (1 + np.exp(-(inputs @ line)))
        slopes: Doubles = inputs.T @ (weights * share - wanted)
        curvature: Doubles = (inputs * (weights * share * (1 - share))[:, None]).T @ inputs
        step: Doubles = np.linalg.solve(curvature + 1e-12 * np.eye(2), slopes).astype(np.float64)
        if np.abs(step).max() < _SMALLEST_STEP:
            break
        size = min(1.0, _LONGEST_STEP / float(np.abs(inputs @ step).max()))
        while size > _SMALLEST_STEP:  # a whole step may go too far
            lower = _loss(inputs @ (line - size * step), weights, wanted)
            if lower <= loss:
                line, loss = line - size * step, lower
                break
            size /= 2
    return float(line[0] / spread), float(line[1] - line[0] * centre / spread)


def _loss(odds: Doubles, weights: Doubles, wanted: Doubles) -> float:
    """Return the cross entropy of log odds."""
    return float(np.sum(weights * np.logaddexp(0, odds) - wanted * odds))


# Scores of old rows on the scale of new rows, so that one ranking can hold both.
#
# A new query scores lower with an old row than with a row of its own model. A gallery that has rows
# of both kinds would therefore prefer the new ones. A calibration is a strictly monotone map of
# new→old scores onto the scale of new→new scores: it changes no order among rows of one kind. Which
# kind of calibration ranks best differs by pair of models, so it is chosen by a test
# (``choose_calibration``).

RAW = "raw"
STANDARDISED = "standardised"
FITTED = "fitted"
ODDS = "odds"

_BINS = 8192  # of scores from −1 to 1


@dataclass(frozen=True)
class Calibration:
    """A strictly monotone map of new→old scores onto the scale of new→new scores.

    Attributes:
        kind: ``raw`` (scores stay as they are), ``standardised`` or ``odds`` (a straight line), or
            ``fitted`` (a line through knots).
        slope: of a straight line; otherwise 1.
        shift: of a straight line; otherwise 0.
        knots: of a fitted one; otherwise None.
    """

    kind: str = RAW
    slope: float = 1.0
    shift: float = 0.0
    knots: ScoreMap | None = None

    def __post_init__(self) -> None:
        """Refuse what is not strictly monotone."""
        if self.kind not in CALIBRATIONS:
            raise UserError(f"unknown calibration {self.kind!r}; choose {', '.join(CALIBRATIONS)}")
        if not (np.isfinite([self.slope, self.shift]).all() and self.slope > 0):
            raise UserError(f"a calibration must rise: its slope is {self.slope}")
        if (self.kind == FITTED) != (self.knots is not None):
            raise UserError(f"a calibration has knots if it is {FITTED}, and only then")

    def __call__(self, scores: Any) -> NDArray[np.float64]:
        """Return new→old scores on the scale of new→new scores."""
        values = np.asarray(scores, dtype=np.float64)
        if self.kind == RAW:
            return values
        return self.slope * values + self.shift if self.knots is None else self.knots(values)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        if self.knots is not None:
            return {
                "kind": self.kind,
                "from": self.knots.cross.tolist(),
                "to": self.knots.old.tolist(),
            }
        if self.kind == RAW:
            return {"kind": self.kind}
        return {"kind": self.kind, "slope": self.slope, "shift": self.shift}

    @staticmethod
    def from_json(value: Any) -> "Calibration":
        """Return the calibration that ``as_json`` described."""
        try:
            content = cast(dict[str, Any], value)
            if content["kind"] == FITTED:
                knots = ScoreMap.from_json({"cross": content["from"], "old": content["to"]})
                return Calibration(FITTED, knots=knots)
            slope, shift = float(content.get("slope", 1)), float(content.get("shift", 0))
            return Calibration(content["kind"], slope, shift)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no calibration: {error}") from error


def fit_calibration(kind: str, cross: ScoredPairs, new_self: ScoredPairs) -> Calibration:
    """Fit a calibration on the scores of two tests with the same queries and rows.

    Args:
        kind: a name from ``CALIBRATIONS``.
        cross: new queries with old rows.
        new_self: new queries with new rows.
    """
    if kind not in CALIBRATIONS:
        raise UserError(f"unknown calibration {kind!r}; choose {', '.join(CALIBRATIONS)}")
    return CALIBRATIONS[kind](cross, new_self)


def _raw(cross: ScoredPairs, new_self: ScoredPairs) -> Calibration:
    """Scores stay as they are."""
    return Calibration()


def _standardised(cross: ScoredPairs, new_self: ScoredPairs) -> Calibration:
    """Give impostors of both kinds the same mean and the same standard deviation."""
    cross_mean, cross_deviation = _mean_and_deviation(cross.impostor)
    new_mean, new_deviation = _mean_and_deviation(new_self.impostor)
    if not (cross_deviation > 0 and new_deviation > 0):
        raise UserError("all impostor scores are equal: a calibration cannot be fitted on them")
    slope = new_deviation / cross_deviation
    return Calibration(STANDARDISED, slope, new_mean - slope * cross_mean)


def _fitted(cross: ScoredPairs, new_self: ScoredPairs) -> Calibration:
    """Carry the quantiles of impostors of one kind to those of the other."""
    return Calibration(FITTED, knots=fit_score_map(cross.impostor, new_self.impostor))


def _odds(cross: ScoredPairs, new_self: ScoredPairs) -> Calibration:
    """Give a score to an old row at which a new row is as likely a mate."""
    lines = [_log_odds(pairs) for pairs in (cross, new_self)]
    (cross_slope, cross_shift), (new_slope, new_shift) = lines
    if not (cross_slope > 0 and new_slope > 0):
        raise UserError("mates do not score higher than impostors: there are no odds to compare")
    return Calibration(ODDS, cross_slope / new_slope, (cross_shift - new_shift) / new_slope)


def _log_odds(pairs: ScoredPairs) -> tuple[float, float]:
    """Return slope and shift of the log odds of a mate as a line over the score."""
    edges = np.linspace(-1, 1, _BINS + 1)
    mates = np.histogram(np.clip(pairs.genuine, -1, 1), edges)[0].astype(np.float64)
    others = np.zeros(_BINS)
    for block in pairs.impostor.table.blocks():
        scores = block.others[block.others > -np.inf]
        others += np.histogram(np.clip(scores, -1, 1), edges)[0]
    return fit_log_odds((edges[:-1] + edges[1:]) / 2, mates, others)


def _mean_and_deviation(impostor: Impostors) -> tuple[float, float]:
    total, squares = 0.0, 0.0
    for block in impostor.table.blocks():
        scores = block.others[block.others > -np.inf].astype(np.float64)
        total += float(scores.sum())
        squares += float(np.square(scores).sum())
    mean = total / max(len(impostor), 1)
    return mean, float(np.sqrt(max(squares / max(len(impostor), 1) - mean**2, 0)))


# The simplest first: of kinds that do equally well, the first is chosen.
CALIBRATIONS: dict[str, Callable[[ScoredPairs, ScoredPairs], Calibration]] = {
    RAW: _raw,
    STANDARDISED: _standardised,
    FITTED: _fitted,
    ODDS: _odds,
}


# How well one search ranks rows of two kinds: a gallery that is partly backfilled.

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


# Which calibration ranks a mixed gallery best: chosen on some classes, reported on others.

REMADE_SHARE = 0.5  # of the rows in the galleries that decide
GALLERIES = 5  # of these random galleries
_MOST_PAIRS = 5_000_000  # queries × rows of a half of the classes


@dataclass(frozen=True)
class CalibrationChoice:
    """The calibration of a pair of models, and what decided about it.

    Attributes:
        calibration: of the chosen kind, fitted on all classes.
        chosen_on: kind -> how well it ranks the half of the classes that decided. Each kind was
            fitted on them.
        reported_on: kind -> the same calibrations on the other half of the classes.
        classes: how many classes each half has.
    """

    calibration: Calibration
    chosen_on: dict[str, SearchQuality]
    reported_on: dict[str, SearchQuality]
    classes: tuple[int, int]

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

    The classes are halved. On one half each kind is fitted and measured; the best is chosen, or
    the simplest of equally good ones. The other half shows what the choice is worth, and
    does not influence it. The returned calibration has the chosen kind, and is fitted on all
    classes.

    Args:
        kinds: the test's queries and rows.
        seed: of the halves and of the rows that the new model has made.
    """
    halves = _halves(kinds, seed)
    tests = [image_test(side) for side in (halves[0].cross, halves[0].new_self)]
    calibrations: dict[str, Calibration] = {}
    for kind in CALIBRATIONS:
        try:
            calibrations[kind] = fit_calibration(kind, tests[0].pairs, tests[1].pairs)
        except UserError:  # too few different scores for this kind
            continue
    measured = [
        mixed_quality(half, calibrations, _galleries(half.rows, [seed, 22, number]))
        for number, half in enumerate(halves)
    ]
    ranked = sorted(measured[0], key=lambda kind: -_worth(measured[0][kind]))
    whole = [image_test(side).pairs for side in (kinds.cross, kinds.new_self)]
    return CalibrationChoice(
        _first_that_fits(ranked, *whole),
        *measured,
        classes=(_classes(halves[0]), _classes(halves[1])),
    )


def _first_that_fits(
    ranked: Sequence[str], cross: ScoredPairs, new_self: ScoredPairs
) -> Calibration:
    """Fit the best kind that can be fitted on all classes; raw scores always can."""
    for kind in ranked:
        try:
            return fit_calibration(kind, cross, new_self)
        except UserError:
            continue
    return Calibration()


def _worth(quality: SearchQuality) -> float:
    return round((quality.top_1 + quality.mean_average_precision) / 2, 6)


def _classes(kinds: TwoKinds) -> int:
    return len(np.unique(kinds.cross.gallery_labels))


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
    halves = [kinds.of_classes(chosen) for chosen in (in_first, ~in_first)]
    return [_fewer_queries(half, rng) for half in halves]


def _fewer_queries(kinds: TwoKinds, rng: np.random.Generator) -> TwoKinds:
    most = max(100, _MOST_PAIRS // kinds.rows)
    if kinds.queries <= most:
        return kinds
    chosen = np.sort(rng.choice(kinds.queries, most, replace=False))
    return kinds.part(chosen, np.arange(kinds.rows))


def _galleries(rows: int, seed: list[int]) -> list[NDArray[np.bool_]]:
    """Draw which rows the new model has made, for several galleries."""
    rng = np.random.default_rng(seed)
    count = round(REMADE_SHARE * rows)
    return [rng.permutation(rows) < count for _ in range(GALLERIES)]
