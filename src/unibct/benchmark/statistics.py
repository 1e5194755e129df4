"""Means over seeds with an interval over test classes and seeds, and paired differences.

Every test of a benchmark is sampled with the same draws of classes, so the samples of two tests
subtract to samples of their difference. A bootstrap repeat draws the classes (once for all seeds,
which share them) and then as many seeds as there are, with replacement. Few seeds drawn among
themselves vary too little, by the factor √((S−1)/S); their deviation is multiplied by its inverse.
"""

from dataclasses import dataclass

import numpy as np

from unibct.evaluation.evaluate import CONFIDENCE, Verdict, verdict_of
from unibct.evaluation.metrics import Floats


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its interval."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def verdict(self) -> Verdict:
        """What it says as a difference cross − old self."""
        return verdict_of(self.low, self.high)


def estimate(values: Floats, samples: Floats, *, seed: int = 0) -> Estimate:
    """The mean over seeds, with an interval over classes and seeds.

    Args:
        values: (seeds,) the metric (or a difference) of each seed.
        samples: (seeds, repeats) the same with the classes drawn; the same draws for each seed.
        seed: of the draws of seeds.
    """
    seeds, repeats = samples.shape
    over_classes = samples.mean(axis=0)
    drawn = over_classes
    if seeds > 1:
        index = np.random.default_rng([seed, 3]).integers(seeds, size=(seeds, repeats))
        over_both = np.take_along_axis(samples, index, axis=0).mean(axis=0)
        drawn = over_classes + np.sqrt(seeds / (seeds - 1)) * (over_both - over_classes)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(float(np.mean(values)), float(low), float(high), seeds)
