"""Queries whose answer changes with the upgrade: right before and wrong now, or the reverse."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unibct.arrays import Floats
from unibct.evaluation.bootstrap import ClassDraws, sampled_mean
from unibct.evaluation.criterion import Estimate, estimate
from unibct.evaluation.search_test import SearchTest


@dataclass(frozen=True)
class Flips:
    """The shares of queries that flip at top-1, each with its interval.

    Attributes:
        nfr: negative flip rate, right under old→old and wrong now.
        pfr: positive flip rate, the reverse; PFR − NFR is the change of top-1.
        relative_nfr: NFR / ((1 − ER_old)·ER_now) with the error rates ER; 1 if the errors now
            are independent of the old ones.
    """

    nfr: Estimate
    pfr: Estimate
    relative_nfr: Estimate

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        rates = {"nfr": self.nfr, "pfr": self.pfr, "relative_nfr": self.relative_nfr}
        values: dict[str, Any] = {name: rate.mean for name, rate in rates.items()}
        return values | {"intervals": {n: [rate.low, rate.high] for n, rate in rates.items()}}


def flip_rates(old_self: SearchTest, now: SearchTest) -> dict[str, float]:
    """Return NFR, PFR and relative NFR of two tests of the same queries."""
    was_right, is_right = old_self.ranks == 0, now.ranks == 0
    means = [float(np.mean(part)) for part in _parts(was_right, is_right)]
    return {name: float(value[0]) for name, value in _rates(np.array(means)[:, None]).items()}


def sampled_flip_rates(
    old_self: SearchTest, now: SearchTest, draws: ClassDraws
) -> dict[str, Floats]:
    """Return (repeats,) values of the three rates for drawn classes."""
    parts = _parts(old_self.ranks == 0, now.ranks == 0)
    means = [sampled_mean(part, now.query_classes, draws) for part in parts]
    return _rates(np.stack(means))


def flips_of(old_self: SearchTest, now: SearchTest, draws: ClassDraws) -> Flips:
    """Return the flip rates with intervals over classes.

    Args:
        old_self: the old model's self test.
        now: the test after the upgrade; the same queries.
        draws: how often each class of the queries counts in each repeat.
    """
    rates = flip_rates(old_self, now)
    samples = sampled_flip_rates(old_self, now, draws)
    classes = draws.drawn
    intervals = {
        name: estimate(np.array([rate]), samples[name][None], classes=classes)
        for name, rate in rates.items()
    }
    return Flips(**{name: replace(one, low=max(one.low, 0.0)) for name, one in intervals.items()})


def _parts(was_right: Any, is_right: Any) -> list[Floats]:
    """Return per query: flipped to wrong, flipped to right, right before, wrong now."""
    parts = (was_right & ~is_right, ~was_right & is_right, was_right, ~is_right)
    return [part.astype(np.float64) for part in parts]


def _rates(means: Floats) -> dict[str, Floats]:
    """Return the rates from (4, n) means of ``_parts``. Where nothing can flip, the rate is 0."""
    nfr, pfr, right_before, wrong_now = means
    expected = right_before * wrong_now
    relative = np.divide(nfr, expected, out=np.zeros_like(nfr), where=expected > 0)
    return {"nfr": nfr, "pfr": pfr, "relative_nfr": relative}
