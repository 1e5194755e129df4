"""Strictly monotone maps of scores onto the scale of other scores.

A new query scores lower with an old row than an old query does, and lower than with a new row. A
threshold that was set for old→old scores would refuse most new queries, and a gallery with rows of
both models would prefer the new ones. A map puts the scores of one test on the scale of another;
because it is strictly monotone, it changes no ranking among rows of one model. Beyond the rarest
impostors a fitted map is a guess: see ``ScoreMap.supports``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.data.training_classes import SCORE_MAP_FITTED, Choice, TrainingClasses
from unibct.errors import UserError
from unibct.evaluation.impostors import Impostors, ScoreRanks, quantiles
from unibct.evaluation.search_test import ScoredPairs, listed_pairs
from unibct.files import read_json, write_json

Doubles: TypeAlias = NDArray[np.float64]

RAW = "raw"  # scores stay as they are
STANDARDISED = "standardised"  # a line: impostors of both tests get the same mean and deviation
FITTED = "fitted"  # through knots: quantiles of one test's impostors become those of the other's
ODDS = "odds"  # a line: a score becomes the one at which a mate is as likely in the other test
SCALED = "scaled"  # a line through zero: a model's score scale, ``embeddings/score_scale.py``

FEWEST_ACCEPTED = 30  # impostor pairs above a threshold, Doddington's rule
_END_KNOTS = 16  # give the slope beyond the last one; of fewer, chance decides
_LEAST_SLOPE, _STEEPEST_SLOPE = 0.01, 100.0


@dataclass(frozen=True)
class ScoreMap:
    """A straight line, or a line through knots.

    Above the knots it goes on with the mean slope between the last ones, below them with slope 1.
    """

    kind: str = RAW  # how it was made: one of the names above
    slope: float = 1.0  # of a straight line
    shift: float = 0.0  # of a straight line
    # (knots,) strictly rising scores, and what each becomes; None if the map is not fitted
    knots: tuple[Doubles, Doubles] | None = None
    fitted_on: Choice | None = None  # the images; None if they are not known
    # how many scores the test with fewer had; None if unknown, as in files of earlier versions
    impostors: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is not strictly monotone."""
        if self.kind not in (*KINDS, SCALED):
            raise UserError(f"unknown kind of score map {self.kind!r}; choose {', '.join(KINDS)}")
        if not 0 < self.slope < np.inf or not np.isfinite(self.shift):
            raise UserError(
                "the slope of a score map is a finite number above zero, and its shift is finite, "
                f"not {self.slope} and {self.shift}"
            )
        if (self.kind == FITTED) != (self.knots is not None):
            raise UserError(f"a score map has knots if it is {FITTED}, and only then")
        for knots in self.knots or ():
            rises = knots.ndim == 1 and len(knots) > 1 and (np.diff(knots) > 0).all()
            if not (rises and np.isfinite(knots).all()):
                raise UserError("a score map needs at least two rising knots on both sides")
        if self.knots is not None and len(self.knots[0]) != len(self.knots[1]):
            raise UserError("a score map needs as many knots on both sides")

    def __call__(self, scores: Any) -> Doubles:
        """Map scores of any shape."""
        values = np.asarray(scores, dtype=np.float64)
        if self.kind == RAW:
            return values
        if self.knots is None:
            return self.slope * values + self.shift
        before, after = self.knots
        below, above = np.minimum(values - before[0], 0), np.maximum(values - before[-1], 0)
        return np.interp(values, before, after) + below + self._end_slope * above

    @cached_property
    def _end_slope(self) -> float:
        """The slope above the last knot."""
        assert self.knots is not None
        first = max(0, len(self.knots[0]) - 1 - _END_KNOTS)
        run, rise = (float(knots[-1]) - float(knots[first]) for knots in self.knots)
        return min(max(rise / run, _LEAST_SLOPE), _STEEPEST_SLOPE)

    def highest_up_to(self, limit: float, dtype: Any) -> float:
        """Return the highest score of a floating point type that is not mapped above ``limit``."""
        if not np.isfinite(limit):
            return float(limit)
        inverse = (limit - self.shift) / self.slope
        if self.knots is not None:
            before, after = self.knots
            below, above = min(limit - after[0], 0), max(limit - after[-1], 0)
            inverse = np.interp(limit, after, before) + below + above / self._end_slope
        low = high = np.asarray(inverse, dtype=dtype)
        step = np.asarray(1e-6, dtype=dtype)
        while self(low) > limit:
            low, step = low - step, 2 * step
        while self(high) <= limit:
            high, step = high + step, 2 * step
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (middle, high) if self(middle) <= limit else (low, middle)
        return float(low)

    @property
    def reach(self) -> float:
        """The last mapped score that is no guess: infinite for a straight line."""
        return np.inf if self.knots is None else float(self.knots[1][-1])

    def supports(self, far: float) -> bool:
        """Return whether enough impostors were seen to map a threshold for a false accept rate."""
        return self.impostors is None or far * self.impostors + 1e-9 >= FEWEST_ACCEPTED

    @property
    def note(self) -> str:
        """For which false accept rates the map holds, in words."""
        if self.impostors is None:
            return (
                "how many impostor pairs the score map was fitted on is not recorded, so it is "
                "unknown for which false accept rates it holds; fit it again"
            )
        return (
            f"the score map was fitted on {self.impostors:,} impostor pairs: thresholds for false "
            f"accept rates below {FEWEST_ACCEPTED / self.impostors:.2g} are beyond it"
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file, with the kind, as of a certificate's calibration."""
        if self.knots is not None:
            before, after = self.knots
            return {"kind": self.kind, "from": before.tolist(), "to": after.tolist()}
        if self.kind == RAW:
            return {"kind": self.kind}
        return {"kind": self.kind, "slope": self.slope, "shift": self.shift}

    def knots_as_json(self) -> dict[str, Any]:
        """Return plain values for a file of maps onto the old scale.

        Images and impostors are there only if they are known.
        """
        assert self.knots is not None, "maps onto the old scale are fitted"
        before, after = self.knots
        content: dict[str, Any] = {"cross": before.tolist(), "old": after.tolist()}
        if self.fitted_on is not None:
            content["fitted_on"] = self.fitted_on.as_json()
        if self.impostors is not None:
            content["impostors"] = self.impostors
        return content

    @staticmethod
    def from_json(value: Any) -> "ScoreMap":
        """Return the map that either of the two described; earlier versions kept only knots."""
        try:
            content = cast(dict[str, Any], value)
            kind = content.get("kind", FITTED)
            if kind != FITTED:
                slope, shift = float(content.get("slope", 1)), float(content.get("shift", 0))
                return ScoreMap(kind, slope, shift)
            sides = ("from", "to") if "kind" in content else ("cross", "old")
            before, after = (np.array(content[side], float) for side in sides)
            impostors = content.get("impostors")
            if impostors is not None and int(impostors) < 1:
                raise ValueError(f"impostors is {impostors}")
            return ScoreMap(
                FITTED,
                knots=(before, after),
                fitted_on=_fitted_on(content.get("fitted_on")),
                impostors=None if impostors is None else int(impostors),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no score map: {error}") from error


def _fitted_on(content: Any) -> Choice | None:
    """Return what a map was fitted on; of an earlier version's, only the classes are known."""
    if content is None or "digests" not in content:
        return None if content is None else Choice.of_json(content)
    classes = TrainingClasses.of_json(content)
    return Choice(SCORE_MAP_FITTED, classes=classes.digests, class_source=classes.source)


# How a map is fitted: on the impostor scores of two tests, and for equal odds on mates' too.

_KNOTS = 64
_FEWEST_SCORES = 100
_RAREST_COUNT = 10  # impostor scores above the last knot: fewer tell too little about a quantile


def fit_score_map(
    before: ScoredPairs | Impostors | Floats,
    after: ScoredPairs | Impostors | Floats,
    kind: str = FITTED,
) -> ScoreMap:
    """Fit what puts the scores of one test on the scale of another, by a kind from ``KINDS``.

    The tests are given by their pairs, such as those of new queries with old rows and of old
    queries with old rows; unless the kind is ``odds``, by their impostor scores alone.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind of score map {kind!r}; choose {', '.join(KINDS)}")
    return KINDS[kind](_pairs(before), _pairs(after))


def _pairs(given: ScoredPairs | Impostors | Floats) -> ScoredPairs:
    none = np.zeros(0)
    if isinstance(given, Impostors):
        return ScoredPairs(none, given, none.astype(np.int64))
    if isinstance(given, ScoredPairs):
        return given
    return listed_pairs(none, given, none.astype(np.int64), np.zeros(len(given), np.int32))


def _raw(before: ScoredPairs, after: ScoredPairs) -> ScoreMap:
    return ScoreMap()


def _standardised(before: ScoredPairs, after: ScoredPairs) -> ScoreMap:
    (mean, deviation), (new_mean, new_deviation) = (
        _mean_and_deviation(pairs.impostor) for pairs in (before, after)
    )
    if not (deviation > 0 and new_deviation > 0):
        raise UserError("all impostor scores are equal: a score map cannot be fitted on them")
    slope = new_deviation / deviation
    return ScoreMap(STANDARDISED, slope, new_mean - slope * mean)


def _mean_and_deviation(impostor: Impostors) -> tuple[float, float]:
    total, squares = 0.0, 0.0
    for block in impostor.table.blocks():
        scores = block.others[block.others > -np.inf].astype(np.float64)
        total += float(scores.sum())
        squares += float(np.square(scores).sum())
    mean = total / max(len(impostor), 1)
    return mean, float(np.sqrt(max(squares / max(len(impostor), 1) - mean**2, 0)))


def _fitted(before: ScoredPairs, after: ScoredPairs) -> ScoreMap:
    return fit_score_maps(*(ScoreRanks(pairs.impostor.table) for pairs in (before, after)))[0]


def fit_score_maps(before: ScoreRanks, after: ScoreRanks) -> list[ScoreMap]:
    """Fit a map through knots for each part of the classes."""
    rates: list[Floats] = []
    sizes: Ints = np.minimum(before.sizes, after.sizes)
    for fewest in (int(size) for size in sizes):
        if fewest < _FEWEST_SCORES:
            raise UserError(
                f"{fewest} impostor scores are too few for a score map; "
                f"give at least {_FEWEST_SCORES}"
            )
        # Rates are spaced evenly on a logarithmic scale: thresholds are set at small ones.
        rates.append(1 - np.append(1.0, np.geomspace(0.75, float(_RAREST_COUNT / fewest), _KNOTS)))
    knots = (quantiles(ranks, rates) for ranks in (before, after))
    return [_through(*sides) for sides in zip(*knots, sizes.tolist(), strict=True)]


def _through(before: Doubles, after: Doubles, impostors: int) -> ScoreMap:
    """Return the map through those knots that rise on both sides."""
    rises = np.ones(len(before), dtype=bool)
    last = 0
    for knot in range(1, len(before)):
        rises[knot] = before[knot] > before[last] and after[knot] > after[last]
        last = knot if rises[knot] else last
    return ScoreMap(FITTED, knots=(before[rises], after[rises]), impostors=impostors)


def _odds(before: ScoredPairs, after: ScoredPairs) -> ScoreMap:
    (slope, shift), (new_slope, new_shift) = (_log_odds(pairs) for pairs in (before, after))
    if not (slope > 0 and new_slope > 0):
        raise UserError("mates do not score higher than impostors: there are no odds to compare")
    return ScoreMap(ODDS, slope / new_slope, (shift - new_shift) / new_slope)


def _log_odds(pairs: ScoredPairs) -> tuple[float, float]:
    """Return slope and shift of the log odds of a mate as a line over the score, in 8,192 bins."""
    edges = np.linspace(-1, 1, 8192 + 1)
    mates = np.histogram(np.clip(pairs.genuine, -1, 1), edges)[0].astype(np.float64)
    others = np.zeros(len(mates))
    for block in pairs.impostor.table.blocks():
        scores = block.others[block.others > -np.inf]
        others += np.histogram(np.clip(scores, -1, 1), edges)[0]
    return fit_log_odds((edges[:-1] + edges[1:]) / 2, mates, others)


def fit_log_odds(scores: Doubles, mates: Doubles, others: Doubles) -> tuple[float, float]:
    """Return slope and shift: log(P(mate) / P(other)) = slope · score + shift.

    ``mates`` and ``others`` are (n,): how many pairs of the same and of different classes have
    each of the (n,) different scores. This is logistic regression of counts: Platt, "Probabilistic
    outputs for support vector machines" (1999), by the Newton steps of Lin, Lin and Weng (2007).
    Platt's targets, a little inside 0 and 1, keep the line finite even if every mate scores higher
    than every impostor.
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

    def loss_of(line: Doubles) -> float:
        """Return the cross entropy."""
        odds = inputs @ line
        return float(np.sum(weights * np.logaddexp(0, odds) - wanted * odds))

    line: Doubles = np.array([0.0, np.log((totals[0] + 1) / (totals[1] + 1))])
    loss, smallest_step = loss_of(line), 1e-9
    for _ in range(100):
        share: Doubles = 1 / (1 + np.exp(-(inputs @ line)))
        slopes: Doubles = inputs.T @ (weights * share - wanted)
        curvature: Doubles = (inputs * (weights * share * (1 - share))[:, None]).T @ inputs
        step: Doubles = np.linalg.solve(curvature + 1e-12 * np.eye(2), slopes).astype(np.float64)
        if np.abs(step).max() < smallest_step:
            break
        # No score's log odds move by more than 2: where all is certain, the curvature says nothing.
        size = min(1.0, 2.0 / float(np.abs(inputs @ step).max()))
        while size > smallest_step:  # a whole step may go too far
            lower = loss_of(line - size * step)
            if lower <= loss:
                line, loss = line - size * step, lower
                break
            size /= 2
    return float(line[0] / spread), float(line[1] - line[0] * centre / spread)


# The simplest first: of kinds that do equally well, the first is chosen.
KINDS: dict[str, Callable[[ScoredPairs, ScoredPairs], ScoreMap]] = {
    RAW: _raw,
    STANDARDISED: _standardised,
    FITTED: _fitted,
    ODDS: _odds,
}


# Maps onto the old scale are kept with the new model, one for each old model that it may follow.

FILE = "score_maps.json"
_REMEDY = "remove it and fit the maps again (an evaluation with save_score_map)"


def save_score_map(folder: str | Path, old_fingerprint: str, score_map: ScoreMap) -> Path:
    """Keep a map in the new model's folder; maps for other old models stay."""
    path = Path(folder) / FILE
    write_json(path, kept_score_maps(folder) | {old_fingerprint: score_map.knots_as_json()})
    return path


def load_score_map(folder: str | Path, old_fingerprint: str) -> ScoreMap:
    """Return the map onto the score scale of an old model."""
    maps = kept_score_maps(folder)
    if old_fingerprint not in maps:
        raise UserError(
            f"{folder} has no score map for the old model {old_fingerprint}; fit one on classes "
            "that you do not test on: an evaluation with save_score_map"
        )
    try:
        return ScoreMap.from_json(maps[old_fingerprint])
    except UserError as error:
        raise UserError(f"{Path(folder) / FILE}: {error}; {_REMEDY}") from error


def kept_score_maps(folder: str | Path) -> dict[str, Any]:
    """Return the maps in a model's folder, by the old model's fingerprint; none without a file."""
    path = Path(folder) / FILE
    if not path.is_file():
        return {}
    try:
        maps: Any = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {_REMEDY}") from error
    if not isinstance(maps, dict):
        raise UserError(f"{path} holds no score maps; {_REMEDY}")
    return cast(dict[str, Any], maps)
