"""Student's t: how much wider an interval is if its variance is itself estimated from few."""

from functools import lru_cache

import numpy as np

_MOST_FREEDOM = 100_000  # beyond, it is the normal distribution in every digit that is shown


@lru_cache
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution.

    With t = √ν·tan θ the density is proportional to cos(θ)^(ν−1), which is summed up to the
    probability.

    Args:
        probability: between 0 and 1.
        freedom: degrees of freedom ν, at least 1.
    """
    freedom = min(freedom, _MOST_FREEDOM)
    theta = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    density = np.cos(theta).clip(0) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(np.sqrt(freedom) * np.tan(np.interp(probability, below / below[-1], theta)))
