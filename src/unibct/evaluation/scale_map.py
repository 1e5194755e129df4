"""A map of new→old scores onto the old scale by one factor, the new model's score scale.

The map through many quantiles, which is fitted on a test, is in ``score_map.py``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError


@dataclass(frozen=True)
class ScaleMap:
    """Multiplies scores; strictly monotone, so it changes no ranking.

    Attributes:
        factor: above zero, see ``embeddings/score_scale.py``.
    """

    factor: float

    def __post_init__(self) -> None:
        """Refuse a factor that would change rankings."""
        if not 0 < self.factor < np.inf:
            raise UserError(f"a score scale is a finite number above zero, not {self.factor}")

    def __call__(self, scores: Any) -> NDArray[np.float64]:
        """Map scores of new queries in the old gallery onto the old scale."""
        return np.asarray(scores, dtype=np.float64) * self.factor

    def highest_up_to(self, limit: float, dtype: Any) -> float:
        """Return the highest score of a floating point type that is not mapped above ``limit``."""
        if not np.isfinite(limit):
            return float(limit)
        score = np.asarray(limit / self.factor, dtype=dtype)
        lowest, highest = (np.asarray(end, dtype=dtype) for end in (-np.inf, np.inf))
        while self(score) > limit:
            score = np.nextafter(score, lowest)
        while self(above := np.nextafter(score, highest)) <= limit:
            score = above
        return float(score)
