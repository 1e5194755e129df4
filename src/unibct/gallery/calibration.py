"""Scores of old rows on the scale of new rows, so that one ranking can hold both.

A new query scores lower with an old row than with a row of its own model. A gallery that has rows
of both kinds would therefore prefer the new ones. A calibration is a strictly monotone map of
new→old scores onto the scale of new→new scores: it changes no order among rows of one kind. Which
kind of calibration ranks best differs by pair of models, so it is chosen by a test
(``choose_calibration``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.evaluation.impostors import Impostors
from unibct.evaluation.score_map import ScoreMap, fit_score_map
from unibct.evaluation.search_test import ScoredPairs
from unibct.gallery.log_odds import fit_log_odds

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
