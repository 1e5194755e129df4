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

from unibct.arrays import Floats
from unibct.errors import UserError

_KNOTS = 64
_FEWEST_SCORES = 100
_RAREST_COUNT = 10  # impostor scores above the last knot: fewer tell too little about a quantile


@dataclass(frozen=True)
class ScoreMap:
    """A piecewise linear map through knots; beyond them it goes on with the slope 1.

    Attributes:
        cross: (knots,) strictly rising scores of new queries in the old gallery.
        old: (knots,) strictly rising scores of old queries in the old gallery.
    """

    cross: NDArray[np.float64]
    old: NDArray[np.float64]

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

    def as_json(self) -> dict[str, list[float]]:
        """Return plain values for a file."""
        return {"cross": self.cross.tolist(), "old": self.old.tolist()}

    @staticmethod
    def from_json(value: dict[str, list[float]]) -> "ScoreMap":
        """Return the map that ``as_json`` described."""
        try:
            return ScoreMap(np.array(value["cross"], float), np.array(value["old"], float))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no score map: {error}") from error


def fit_score_map(cross_impostor: Floats, old_impostor: Floats) -> ScoreMap:
    """Fit the map on impostor scores of the cross test and of the old self test.

    Args:
        cross_impostor: scores of new queries with old templates of other classes.
        old_impostor: scores of old queries with the same templates.
    """
    fewest = min(len(cross_impostor), len(old_impostor))
    if fewest < _FEWEST_SCORES:
        raise UserError(
            f"{fewest} impostor scores are too few for a score map; give at least {_FEWEST_SCORES}"
        )
    rarest = _RAREST_COUNT / fewest
    # Rates are spaced evenly on a logarithmic scale: thresholds are set at small ones.
    rates = np.concatenate([[1.0], np.geomspace(0.75, rarest, _KNOTS)])
    cross, old = (
        np.quantile(np.asarray(scores, dtype=np.float64), 1 - rates)
        for scores in (cross_impostor, old_impostor)
    )
    rises = np.ones(len(rates), dtype=bool)
    last = 0
    for knot in range(1, len(rates)):
        rises[knot] = cross[knot] > cross[last] and old[knot] > old[last]
        last = knot if rises[knot] else last
    return ScoreMap(cross[rises], old[rises])
