"""The compatibility criterion: M(new→old) > M(old→old), with its uncertainty and its verdict.

An interval has two parts, which are added as squares. The part over classes comes from bootstrap
samples: within one evaluation or for all seeds at once, a sample draws the test classes. Classes
drawn from n vary too little, by the factor √((n−1)/n), and their variance is an estimate, so the
deviations are stretched by the inverse and by Student's t with n−1 degrees. The part over seeds is
Student's t with S−1 degrees times the standard error of the seeds' mean. Below three seeds there
is no such part: the interval is over classes, of these seeds (docs/decisions/0021-intervals.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from unibct.arrays import Floats
from unibct.evaluation.bootstrap import REPEATS, ClassDraws, class_draws, t_quantile
from unibct.evaluation.metrics import METRICS, find_metric, measured_metrics, sampled_metrics
from unibct.evaluation.search_test import SearchTest
from unibct.evaluation.verification import HEADLINE_FAR

Verdict: TypeAlias = Literal["compatible", "not compatible", "within noise"]
# An old model that is hardly better than raw pixels is easily beaten: nothing follows from that.
OldModelVerdict: TypeAlias = Literal["old model too weak"]
OLD_MODEL_TOO_WEAK: OldModelVerdict = "old model too weak"

CONFIDENCE = 0.95
# Fewer classes carry no verdict: an interval over so few depends too much on how they are spread.
FEWEST_CLASSES = 10
# Two seeds say next to nothing about others: Student's t with one degree of freedom is 12.7.
FEWEST_SEEDS = 3
# Any of the deciding metrics can make a verdict *not compatible*, so each of them gets its share of
# the error. *Compatible* needs all of them, so it needs no such correction.
_DECIDING = sum(metric.decides for metric in METRICS.values())
_TAIL = (1 - CONFIDENCE) / 2
NOT_COMPATIBLE_RULE = (
    f"Not compatible needs a difference below zero at a one-sided {1 - _TAIL / _DECIDING:.1%}, "
    f"because any of {_DECIDING} metrics may be below by chance; an interval that ends just below "
    "zero is within noise"
).replace("%", " %")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds (or a single value) with its interval."""

    mean: float  # over the seeds
    low: float  # lower end of the interval
    high: float  # upper end
    ceiling: float  # upper end at the level that *not compatible* needs, which is above ``high``
    seeds: int = 1  # how many
    classes: int = FEWEST_CLASSES  # over how many classes (or folds) it is

    @property
    def verdict(self) -> Verdict:
        """What the interval says if this is a difference cross − old self.

        *Within noise* if neither is shown, or if the classes are too few.
        """
        if self.classes < FEWEST_CLASSES:
            return "within noise"
        if self.low > 0:
            return "compatible"
        return "not compatible" if self.ceiling < 0 else "within noise"


def estimate(values: Floats, samples: Floats, *, classes: int) -> Estimate:
    """Return the mean over seeds, with an interval over classes, and seeds if there are enough.

    ``values`` are (seeds,): the metric (or a difference) of each. ``samples`` are (seeds, repeats):
    the same for drawn classes, with the same draws for each seed; ``classes`` of them were drawn.
    """
    mean, drawn = float(np.mean(values)), samples.mean(axis=0)
    low = mean - half_width(mean - drawn, values, classes, _TAIL)
    high = mean + half_width(drawn - mean, values, classes, _TAIL)
    ceiling = mean + half_width(drawn - mean, values, classes, _TAIL / _DECIDING)
    return Estimate(mean, low, high, ceiling, len(values), classes)


def half_width(deviations: Floats, values: Floats, classes: int, tail: float) -> float:
    """Return how far an interval reaches to one side.

    ``deviations`` are (repeats,): of drawn classes towards that side; ``values`` are (seeds,), and
    ``tail`` is the probability that the truth is farther away.
    """
    freedom = max(classes - 1, 1)
    stretch = np.sqrt(classes / freedom) * t_quantile(1 - tail, freedom)
    over_classes = np.quantile(deviations, 1 - tail) * stretch / NormalDist().inv_cdf(1 - tail)
    seeds, over_seeds = len(values), 0.0
    if seeds >= FEWEST_SEEDS:
        standard_error = np.std(values, ddof=1) / np.sqrt(seeds)
        over_seeds = t_quantile(1 - tail, seeds - 1) * standard_error
    return float(np.hypot(max(over_classes, 0.0), over_seeds))


@dataclass(frozen=True, kw_only=True)
class Criterion(Estimate):
    """M(cross) − M(old self) for one metric, with its interval."""

    metric: str  # its name
    old_self: float  # M(old→old)
    cross: float  # M(new→old)
    decides: bool = True  # whether the verdict on the upgrade depends on it

    @property
    def difference(self) -> float:
        """M(cross) − M(old self)."""
        return self.cross - self.old_self

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "metric": self.metric,
            "old_self": self.old_self,
            "cross": self.cross,
            "difference": self.difference,
            "interval": [self.low, self.high],
            "confidence": CONFIDENCE,
            "ceiling": self.ceiling,
            "verdict": self.verdict,
        }


def sampled_criterion(
    metric: str,
    old_self: float,
    cross: float,
    differences: Floats,
    *,
    classes: int,
    decides: bool = True,
) -> Criterion:
    """Return the criterion with the interval of sampled differences cross − old self."""
    interval = estimate(np.array([cross - old_self]), differences[None], classes=classes)
    return Criterion(
        **vars(interval), metric=metric, old_self=old_self, cross=cross, decides=decides
    )


def seeds_note(seeds: int) -> str:
    """Say what an interval of so many seeds is over."""
    interval = f"Intervals are {100 * CONFIDENCE:.0f} %, over test classes"
    if seeds >= FEWEST_SEEDS:
        return f"{interval} and seeds of training."
    return f"{interval}, of {these_seeds(seeds)}: they say nothing about other seeds of training."


def these_seeds(seeds: int) -> str:
    """Return what a claim is about that is made over so few seeds."""
    return "this one seed" if seeds == 1 else f"these {seeds} seeds"


def few_classes_note(classes: int, what: str = "classes") -> str | None:
    """Say that the classes of the queries, called ``what``, are too few for a verdict, if so."""
    if classes >= FEWEST_CLASSES:
        return None
    return (
        f"only {classes} {what} have queries: too few for a verdict, so differences count as "
        f"within noise; test on {FEWEST_CLASSES} or more"
    )


class SampledTest(NamedTuple):
    """The metrics of a test, and their values for drawn classes."""

    values: dict[str, float]  # metric -> its value
    samples: dict[str, Floats]  # metric -> (repeats,); only the metrics that have an interval
    classes: int  # how many were drawn

    def minus(self, before: "SampledTest") -> tuple[Criterion, ...]:
        """Return how much better this test is, by a paired bootstrap.

        The other test is of the same queries, sampled with the same draws.
        """
        return tuple(
            sampled_criterion(
                metric,
                before.values[metric],
                self.values[metric],
                samples - before.samples[metric],
                classes=self.classes,
                decides=find_metric(metric).decides,
            )
            for metric, samples in self.samples.items()
        )


def sampled_test(test: SearchTest, draws: ClassDraws, far: float) -> SampledTest:
    """Measure a test, and sample it, with the TAR at a false accept rate."""
    samples = sampled_metrics(test, draws, far)
    return SampledTest(measured_metrics(test, [far]), samples, draws.drawn)


def compare_tests(
    old_self: SearchTest,
    cross: SearchTest,
    *,
    far: float = HEADLINE_FAR,
    seed: int = 0,
    repeats: int = REPEATS,
) -> tuple[Criterion, ...]:
    """Return the criterion of each metric that has an interval, by a paired bootstrap.

    The classes of the queries, which are the same in both tests, are drawn with replacement; the
    gallery does not change. (Drawing the templates too would count the variance between pairs of
    classes three times; a test checks the interval's calibration.)
    """
    draws = class_draws(cross, seed=seed, repeats=repeats)
    before, after = (sampled_test(test, draws, far) for test in (old_self, cross))
    return after.minus(before)


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return *compatible* if all are; *not compatible* if any is; otherwise *within noise*."""
    if "not compatible" in verdicts:
        return "not compatible"
    return "within noise" if "within noise" in verdicts else "compatible"
