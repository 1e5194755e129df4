"""What blended queries gain in the old gallery: over old queries, and over new ones.

How queries are blended, and how the share is chosen, is in ``blending.py``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unibct.evaluation.blending import AlphaChoice
from unibct.evaluation.criterion import CONFIDENCE, Criterion, Verdict, joint_verdict


@dataclass(frozen=True)
class BlendedQueries:
    """The gain of blended queries in each metric that has an interval.

    Attributes:
        alpha: the share of the new query.
        minus_old_self: M(blend→old) − M(old→old): above zero, the upgrade gains by blending.
        minus_cross: M(blend→old) − M(new→old): what the second encoder is worth.
        choice: how alpha was chosen; None if it was given.
    """

    alpha: float
    minus_old_self: tuple[Criterion, ...]
    minus_cross: tuple[Criterion, ...]
    choice: AlphaChoice | None = None

    @property
    def verdict(self) -> Verdict:
        """*Compatible* if blended queries beat old ones in every metric that decides."""
        return joint_verdict([c.verdict for c in self.minus_old_self if c.decides])

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "alpha": self.alpha,
            "chosen_on": None if self.choice is None else self.choice.as_json(),
            "verdict": self.verdict,
            "minus_old_self": _rows(self.minus_old_self),
            "minus_cross": _rows(self.minus_cross),
        }


def _rows(criteria: Iterable[Criterion]) -> list[dict[str, Any]]:
    return [
        {
            "metric": c.metric,
            "difference": c.difference,
            "interval": [c.low, c.high],
            "confidence": CONFIDENCE,
            "decides": c.decides,
        }
        for c in criteria
    ]
