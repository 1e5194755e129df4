"""The compatibility criterion: M(new→old) > M(old→old), with its uncertainty and its verdict.

The interval of a difference comes from bootstrap samples. Within one evaluation, a sample draws
the test classes. Over several seeds of training, it draws the classes (the same for all seeds) and
then as many seeds as there are, with replacement. If only S seeds are drawn from S, they vary too
little, by the factor √((S−1)/S), so their deviation is multiplied by its inverse
(docs/decisions/0006-benchmark.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from unibct.arrays import Floats
from unibct.evaluation.bootstrap import REPEATS, ClassDraws, class_draws
from unibct.evaluation.metrics.table import find_metric, measured_metrics, sampled_metrics
from unibct.evaluation.resolution import HEADLINE_FAR
from unibct.evaluation.search_test import SearchTest

Verdict: TypeAlias = Literal["compatible", "not compatible", "within noise"]
# An old model that is hardly better than raw pixels is easily beaten: nothing follows from that.
OldModelVerdict: TypeAlias = Literal["old model too weak"]
OLD_MODEL_TOO_WEAK: OldModelVerdict = "old model too weak"

CONFIDENCE = 0.95
# Intervals over fewer classes are too narrow for a verdict: with two classes and two equally good
# models, a quarter to a third of the verdicts claimed a difference.
FEWEST_CLASSES = 10


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds (or a single value) with its interval.

    Attributes:
        mean: over the seeds.
        low: lower end of the interval.
        high: upper end.
        seeds: how many.
        few_classes: whether the interval is over fewer than ``FEWEST_CLASSES`` classes.
    """

    mean: float
    low: float
    high: float
    seeds: int = 1
    few_classes: bool = False

    @property
    def verdict(self) -> Verdict:
        """What the interval says if this is a difference cross − old self.

        *Within noise* if it contains zero, or is over too few classes.
        """
        if self.few_classes:
            return "within noise"
        if self.low > 0:
            return "compatible"
        return "not compatible" if self.high < 0 else "within noise"


def estimate(
    values: Floats, samples: Floats, *, seed: int = 0, few_classes: bool = False
) -> Estimate:
    """Return the mean over seeds, with an interval over classes and seeds.

    Args:
        values: (seeds,) the metric (or a difference) of each seed.
        samples: (seeds, repeats) the same for drawn classes, with the same draws for each seed.
        seed: of the generator that draws seeds.
        few_classes: see ``Estimate``.
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
    return Estimate(float(np.mean(values)), float(low), float(high), seeds, few_classes)


@dataclass(frozen=True)
class Criterion:
    """M(cross) − M(old self) for one metric, with its interval.

    Attributes:
        metric: its name.
        old_self: M(old→old).
        cross: M(new→old).
        low: lower end of the difference's interval.
        high: upper end.
        decides: whether the verdict on the upgrade depends on it.
        few_classes: see ``Estimate``.
    """

    metric: str
    old_self: float
    cross: float
    low: float
    high: float
    decides: bool = True
    few_classes: bool = False

    @property
    def difference(self) -> float:
        """M(cross) − M(old self)."""
        return self.cross - self.old_self

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        return self.estimate.verdict

    @property
    def estimate(self) -> Estimate:
        """The difference with its interval."""
        return Estimate(self.difference, self.low, self.high, few_classes=self.few_classes)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "metric": self.metric,
            "old_self": self.old_self,
            "cross": self.cross,
            "difference": self.difference,
            "interval": [self.low, self.high],
            "confidence": CONFIDENCE,
            "verdict": self.verdict,
        }


def sampled_criterion(
    metric: str,
    old_self: float,
    cross: float,
    differences: Floats,
    *,
    decides: bool = True,
    few_classes: bool = False,
) -> Criterion:
    """Return the criterion with the interval of sampled differences cross − old self."""
    interval = estimate(np.array([cross - old_self]), differences[None])
    return Criterion(metric, old_self, cross, interval.low, interval.high, decides, few_classes)


def few_classes_note(classes: int, what: str = "classes") -> str | None:
    """Say that the classes of the queries are too few for a verdict, if they are.

    Args:
        classes: how many have queries.
        what: what they are called.
    """
    if classes >= FEWEST_CLASSES:
        return None
    return (
        f"only {classes} {what} have queries: intervals over so few are too narrow, so differences "
        f"count as within noise; test on {FEWEST_CLASSES} or more"
    )


@dataclass(frozen=True)
class SampledTest:
    """The metrics of a test, and their values for drawn classes.

    Attributes:
        values: metric -> its value.
        samples: metric -> (repeats,); only the metrics that have an interval.
        few_classes: see ``Estimate``.
    """

    values: dict[str, float]
    samples: dict[str, Floats]
    few_classes: bool = False

    def minus(self, before: "SampledTest") -> tuple[Criterion, ...]:
        """Return how much better this test is, by a paired bootstrap.

        Args:
            before: another test of the same queries, sampled with the same draws.
        """
        return tuple(
            sampled_criterion(
                metric,
                before.values[metric],
                self.values[metric],
                samples - before.samples[metric],
                decides=find_metric(metric).decides,
                few_classes=self.few_classes,
            )
            for metric, samples in self.samples.items()
        )


def sampled_test(test: SearchTest, draws: ClassDraws, far: float) -> SampledTest:
    """Measure a test, and sample it.

    Args:
        test: the test.
        draws: how often each class of the queries counts in each repeat.
        far: false accept rate of the TAR.
    """
    return SampledTest(
        measured_metrics(test, [far]),
        sampled_metrics(test, draws, far),
        draws.drawn < FEWEST_CLASSES,
    )


def compare_tests(
    old_self: SearchTest,
    cross: SearchTest,
    *,
    far: float = HEADLINE_FAR,
    seed: int = 0,
    repeats: int = REPEATS,
) -> tuple[Criterion, ...]:
    """Return the criterion of each metric that has an interval, by a paired bootstrap.

    The classes of the queries are drawn with replacement, the same for both tests; the gallery
    does not change. (Drawing the templates too would count the variance between pairs of classes
    three times; a test checks the interval's calibration.)

    Args:
        old_self: the old model's self test.
        cross: new queries in the old gallery; the same queries.
        far: false accept rate of the TAR.
        seed: chooses the bootstrap samples.
        repeats: number of bootstrap samples.
    """
    draws = class_draws(cross, seed=seed, repeats=repeats)
    before, after = (sampled_test(test, draws, far) for test in (old_self, cross))
    return after.minus(before)


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return *compatible* if all are; *not compatible* if any is; otherwise *within noise*."""
    if "not compatible" in verdicts:
        return "not compatible"
    return "within noise" if "within noise" in verdicts else "compatible"
