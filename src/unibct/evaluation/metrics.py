"""The metrics. To add one, write a function and add a line to ``METRICS``.

The terminal, the JSON, the reports and the benchmark show every metric that applies to a test.
Every metric is a share between 0 and 1; larger is better. Another package adds a ``Metric`` by an
entry point of the group ``unibct.metrics``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unibct.arrays import Floats
from unibct.evaluation.bootstrap import ClassDraws, sampled_mean, sampled_tar, sampled_tpir
from unibct.evaluation.identification import average_precisions
from unibct.evaluation.search_test import SearchTest
from unibct.evaluation.verification import ThresholdRule, rate_name
from unibct.registry import Registry

TOP_1 = "top-1"  # the metric that a report shows where there is room for one


@dataclass(frozen=True)
class Metric:
    """One line of the table."""

    name: str  # in tables; of a metric ``at_far``, the title is made from name and rate
    kind: Literal["1:1", "1:N"]  # verification or identification; tables keep the kinds together
    # its value for a test, at a false accept rate if it is ``at_far``
    measure: Callable[[SearchTest, float, ThresholdRule], float]
    # (repeats,) values for drawn classes; None if it has no interval
    sample: Callable[[SearchTest, ClassDraws, float], Floats] | None = None
    applies: Callable[[SearchTest], bool] = lambda test: True  # whether a test has what it needs
    decides: bool = False  # whether the verdict depends on it
    at_far: bool = False  # whether it is measured at a false accept rate

    def title(self, far: float) -> str:
        """Return the name with the false accept rate filled in."""
        return f"{self.name}@{rate_name(far)}" if self.at_far else self.name


def mean_over_queries(
    name: str,
    values: Callable[[SearchTest], Floats],
    applies: Callable[[SearchTest], bool] = lambda test: True,
    *,
    decides: bool = False,
    interval: bool = True,
) -> Metric:
    """Return a metric that is the mean of one value for each query."""

    def values_of(test: SearchTest) -> Floats:
        if name not in test.per_query:
            test.per_query[name] = values(test)
        return test.per_query[name]

    return Metric(
        name,
        "1:N",
        lambda test, far, rule: float(np.mean(values_of(test))),
        (lambda test, draws, far: sampled_mean(values_of(test), test.query_classes, draws))
        if interval
        else None,
        applies,
        decides,
    )


def _top(k: int, *, decides: bool = True, interval: bool = True) -> Metric:
    return mean_over_queries(
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


_OURS = (
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
    mean_over_queries("mAP", _average_precisions, lambda test: test.images is not None),
)
METRICS = Registry("metric", {metric.name: metric for metric in _OURS})


def measured_metrics(
    test: SearchTest, fars: Sequence[float], *, rule: ThresholdRule = "strict"
) -> dict[str, float]:
    """Return every metric of a test by its title, at each of the false accept rates."""
    return {
        metric.title(far): metric.measure(test, far, rule)
        for metric in METRICS.values()
        if metric.applies(test)
        for far in (fars if metric.at_far else fars[:1])
    }


def sampled_metrics(test: SearchTest, draws: ClassDraws, far: float) -> dict[str, Floats]:
    """Return (repeats,) values of every metric that has an interval, by its title at a rate."""
    return {
        metric.title(far): metric.sample(test, draws, far)
        for metric in METRICS.values()
        if metric.sample is not None and metric.applies(test)
    }


def find_metric(title: str) -> Metric:
    """Return the metric with the title ``title`` in tables, such as TAR@1e-3."""
    name = title.partition("@")[0]
    is_at_far = name in METRICS and METRICS[name].at_far
    return METRICS.find(name if is_at_far else title)
