"""The log odds of a mate as a straight line over the score: logistic regression of counts.

Platt, "Probabilistic outputs for support vector machines" (1999), by the Newton steps of Lin, Lin
and Weng (2007). Platt's targets, a little inside 0 and 1, keep the line finite even if every mate
scores higher than every impostor.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError

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
