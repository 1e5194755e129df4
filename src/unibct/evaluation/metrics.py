"""The table of metrics. To add one, write a function and add a line here.

The terminal, the JSON, the reports and the benchmark show every metric of this table that applies
to a test. Every metric is a share between 0 and 1; larger is better.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from unibct.arrays import Floats
from unibct.evaluation.bootstrap import ClassDraws, sampled_mean, sampled_tar, sampled_tpir
from unibct.evaluation.identification import average_precisions
from unibct.evaluation.search_test import SearchTest
from unibct.evaluation.verification import ThresholdRule, rate_name

PerQuery: TypeAlias = Callable[[SearchTest], Floats]

TOP_1 = "top-1"  # the metric that a report shows where there is room for one


@dataclass(frozen=True)
class Metric:
    """One line of the table.

    Attributes:
        name: its name in tables; if it is ``at_far``, the title is made from name and rate.
        kind: verification (1:1) or identification (1:N); tables keep the kinds together.
        measure: returns its value for a test, at a false accept rate if it is ``at_far``.
        sample: returns (repeats,) values for drawn classes; None if it has no interval.
        applies: whether a test has what it needs.
        decides: whether the verdict depends on it.
        at_far: whether it is measured at a false accept rate.
    """

    name: str
    kind: Literal["1:1", "1:N"]
    measure: Callable[[SearchTest, float, ThresholdRule], float]
    sample: Callable[[SearchTest, ClassDraws, float], Floats] | None = None
    applies: Callable[[SearchTest], bool] = lambda test: True
    decides: bool = False
    at_far: bool = False

    def title(self, far: float) -> str:
        """Return the name with the false accept rate filled in."""
        return f"{self.name}@{rate_name(far)}" if self.at_far else self.name


def _per_query(
    name: str,
    values: PerQuery,
    applies: Callable[[SearchTest], bool],
    *,
    decides: bool = False,
    interval: bool = True,
) -> Metric:
    """Return a metric that is the mean of one value for each query."""

    def values_of(test: SearchTest) -> Floats:
        if name not in test.per_query:
            test.per_query[name] = values(test)
        return test.per_query[name]

    def sample(test: SearchTest, draws: ClassDraws, far: float) -> Floats:
        return sampled_mean(values_of(test), test.query_classes, draws)

    return Metric(
        name,
        "1:N",
        lambda test, far, rule: float(np.mean(values_of(test))),
        sample if interval else None,
        applies,
        decides,
    )


def _top(k: int, *, decides: bool = True, interval: bool = True) -> Metric:
    return _per_query(
        f"top-{k}",
        lambda test: (test.ranks < k).astype(np.float64),
        lambda test: k in test.ks,
        decides=decides,
        interval=interval,
    )


def _tpir(fpir: float) -> Metric:
    return Metric(
        f"TPIR@{fpir:g}",
        "1:N",
        lambda test, far, rule: test.tpir(fpir),
        lambda test, draws, far: sampled_tpir(test.open_searches.values(), draws, fpir),
        applies=lambda test: len(test.open_searches) > 0,
    )


def _average_precisions(test: SearchTest) -> Floats:
    assert test.images is not None, "the metric applies"
    return average_precisions(*test.images)


METRICS: tuple[Metric, ...] = (
    Metric(
        "TAR",
        "1:1",
        lambda test, far, rule: test.tar(far, rule=rule),
        lambda test, draws, far: sampled_tar(test.pairs, draws, far),
        decides=True,
        at_far=True,
    ),
    _top(1),
    _top(5),
    _top(10, decides=False, interval=False),
    _tpir(0.01),
    _tpir(0.1),
    _per_query("mAP", _average_precisions, lambda test: test.images is not None),
)


def measured_metrics(
    test: SearchTest, fars: Sequence[float], *, rule: ThresholdRule = "strict"
) -> dict[str, float]:
    """Return every metric of a test by its title, at each of the false accept rates."""
    return {
        metric.title(far): metric.measure(test, far, rule)
        for metric in METRICS
        if metric.applies(test)
        for far in (fars if metric.at_far else fars[:1])
    }


def sampled_metrics(test: SearchTest, draws: ClassDraws, far: float) -> dict[str, Floats]:
    """Return (repeats,) values of every metric that has an interval, by its title.

    Args:
        test: the test.
        draws: how often each class of the queries counts in each repeat.
        far: false accept rate of the TAR.
    """
    return {
        metric.title(far): metric.sample(test, draws, far)
        for metric in METRICS
        if metric.sample is not None and metric.applies(test)
    }


def find_metric(title: str) -> Metric:
    """Return the metric with the title ``title`` in tables."""
    name = title.partition("@")[0]
    return next(m for m in METRICS if title == m.name or (m.at_far and name == m.name))
