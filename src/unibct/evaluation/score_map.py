"""A strictly monotone map of new→old scores onto the old score scale.

A deployed system compares scores with a threshold that was set for old→old scores. New queries
score lower in the old gallery, so that threshold would refuse most of them. The map carries the
quantiles of cross-test impostor scores to the quantiles of old impostor scores. A threshold on
the old scale then lets as many impostors pass as before. Because the map is strictly monotone, it
changes no ranking.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.data.choices import SCORE_MAP_FITTED, Choice
from unibct.data.training_classes import TrainingClasses
from unibct.errors import UserError
from unibct.evaluation.impostors import Impostors, listed_impostors
from unibct.evaluation.score_ranks import ScoreRanks, quantiles

_KNOTS = 64
_FEWEST_SCORES = 100
_RAREST_COUNT = 10  # impostor scores above the last knot: fewer tell too little about a quantile


@dataclass(frozen=True)
class ScoreMap:
    """A piecewise linear map through knots; beyond them it goes on with the slope 1.

    Attributes:
        cross: (knots,) strictly rising scores of new queries in the old gallery.
        old: (knots,) strictly rising scores of old queries in the old gallery.
        fitted_on: the images that it was fitted on; None if they are not known.
    """

    cross: NDArray[np.float64]
    old: NDArray[np.float64]
    fitted_on: Choice | None = None

    def __post_init__(self) -> None:
        """Refuse knots that are not strictly monotone."""
        for name, knots in (("cross", self.cross), ("old", self.old)):
            if knots.ndim != 1 or len(knots) < 2 or not (np.diff(knots) > 0).all():
                raise UserError(f"a score map needs at least two rising {name} scores")
        if len(self.cross) != len(self.old):
            raise UserError("a score map needs as many cross scores as old scores")

    def __call__(self, scores: Any) -> NDArray[np.float64]:
        """Map scores of new queries in the old gallery onto the old scale."""
        values = np.asarray(scores, dtype=np.float64)
        below = np.minimum(values - self.cross[0], 0)
        above = np.maximum(values - self.cross[-1], 0)
        return np.interp(values, self.cross, self.old) + below + above

    def highest_up_to(self, limit: float, dtype: Any) -> float:
        """Return the highest score of a floating point type that is not mapped above ``limit``."""
        low = high = np.interp(limit, self.old, self.cross) + np.clip(limit - self.old[0], None, 0)
        low = high = np.asarray(low + np.clip(limit - self.old[-1], 0, None), dtype=dtype)
        if not np.isfinite(limit):
            return float(limit)
        step = np.asarray(1e-6, dtype=dtype)
        while self(low) > limit:
            low, step = low - step, 2 * step
        while self(high) <= limit:
            high, step = high + step, 2 * step
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (middle, high) if self(middle) <= limit else (low, middle)
        return float(low)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file; the images only if they are known."""
        knots: dict[str, Any] = {"cross": self.cross.tolist(), "old": self.old.tolist()}
        if self.fitted_on is None:
            return knots
        return knots | {"fitted_on": self.fitted_on.as_json()}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "ScoreMap":
        """Return the map that ``as_json`` described; earlier versions did not keep the images."""
        try:
            cross, old = (np.array(value[side], float) for side in ("cross", "old"))
            return ScoreMap(cross, old, _fitted_on(value.get("fitted_on")))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no score map: {error}") from error


def _fitted_on(content: Any) -> Choice | None:
    """Return what a map was fitted on; of an earlier version's, only the classes are known."""
    if content is None or "digests" not in content:
        return None if content is None else Choice.of_json(content)
    classes = TrainingClasses.of_json(content)
    return Choice(SCORE_MAP_FITTED, classes=classes.digests, class_source=classes.source)


def fit_score_map(cross_impostor: Floats | Impostors, old_impostor: Floats | Impostors) -> ScoreMap:
    """Fit the map on impostor scores of the cross test and of the old self test.

    Args:
        cross_impostor: scores of new queries with old templates of other classes.
        old_impostor: scores of old queries with the same templates.
    """
    tables = [
        (scores if isinstance(scores, Impostors) else listed_impostors(scores)).table
        for scores in (cross_impostor, old_impostor)
    ]
    return fit_score_maps(*(ScoreRanks(table) for table in tables))[0]


def fit_score_maps(cross_impostor: ScoreRanks, old_impostor: ScoreRanks) -> list[ScoreMap]:
    """Fit a map for each part of the classes, see ``fit_score_map``."""
    rates: list[Floats] = []
    sizes: Ints = np.minimum(cross_impostor.sizes, old_impostor.sizes)
    for fewest in (int(size) for size in sizes):
        if fewest < _FEWEST_SCORES:
            raise UserError(
                f"{fewest} impostor scores are too few for a score map; "
                f"give at least {_FEWEST_SCORES}"
            )
        # Rates are spaced evenly on a logarithmic scale: thresholds are set at small ones.
        rarest = float(_RAREST_COUNT / fewest)
        rates.append(1 - np.append(1.0, np.geomspace(0.75, rarest, _KNOTS)))
    knots = (quantiles(ranks, rates) for ranks in (cross_impostor, old_impostor))
    return [_through(cross, old) for cross, old in zip(*knots, strict=True)]


def _through(cross: NDArray[np.float64], old: NDArray[np.float64]) -> ScoreMap:
    """Return the map through those knots that rise on both sides."""
    rises = np.ones(len(cross), dtype=bool)
    last = 0
    for knot in range(1, len(cross)):
        rises[knot] = cross[knot] > cross[last] and old[knot] > old[last]
        last = knot if rises[knot] else last
    return ScoreMap(cross[rises], old[rises])
