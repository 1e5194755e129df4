"""What happens at the thresholds that the old system uses today."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.errors import UserError
from unibct.evaluation.bootstrap import sampled_mean, sampled_thresholds
from unibct.evaluation.criterion import estimate
from unibct.evaluation.metrics.verification import strict_threshold
from unibct.evaluation.score_map import ScoreMap, fit_score_map
from unibct.evaluation.search_test import ScoredPairs, SearchTest

FARS = (1e-2, 1e-3, 1e-4)
_FOLDS = 5


@dataclass(frozen=True)
class Accepted:
    """The shares of genuine and of impostor pairs that a threshold accepts, and FAR's interval."""

    tar: float
    far: float
    far_interval: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {"tar": self.tar, "far": self.far, "far_interval": list(self.far_interval)}


@dataclass(frozen=True)
class AtOldThreshold:
    """One false accept rate: the old threshold, and the threshold that the new model needs.

    Attributes:
        far: the false accept rate that the threshold was set for.
        threshold: of old→old at that rate.
        interval: of the threshold, over test classes.
        new_threshold: of new→old at that rate.
        new_interval: of that threshold.
        old: what the old system accepts at its threshold.
        cross: what the cross test accepts at the old threshold.
        mapped: the same after the score map, which was fitted on other classes; None if there
            are too few pairs, or too few different scores, to fit one.
        own_tar: TAR of the cross test at its own threshold.
    """

    far: float
    threshold: float
    interval: tuple[float, float]
    new_threshold: float
    new_interval: tuple[float, float]
    old: Accepted
    cross: Accepted
    mapped: Accepted | None
    own_tar: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "threshold": self.threshold,
            "interval": list(self.interval),
            "new_threshold": self.new_threshold,
            "new_interval": list(self.new_interval),
            "old": self.old.as_json(),
            "cross": self.cross.as_json(),
            "mapped": None if self.mapped is None else self.mapped.as_json(),
            "own_tar": self.own_tar,
        }

    @property
    def needs_new_threshold(self) -> bool:
        """Whether the cross test loses matches, or lets impostors in, at the old threshold."""
        return self.cross.tar < 0.95 * self.own_tar or self.cross.far > 2 * self.far


def at_old_thresholds(
    old_self: SearchTest,
    cross: SearchTest,
    draws: Ints,
    *,
    score_map: ScoreMap | None = None,
    seed: int = 0,
) -> tuple[AtOldThreshold, ...]:
    """Measure the cross test at the thresholds of the old self test.

    Args:
        old_self: the old model's self test.
        cross: new queries in the old gallery; the same queries.
        draws: (repeats, classes) how often each class counts, for the intervals.
        score_map: a map that was fitted on other data. By default the classes are divided into
            five parts, and the queries of each part are mapped by what the other parts gave.
        seed: chooses the parts.
    """
    mapped = _mapped_pairs(old_self, cross, score_map, seed)
    rows: list[AtOldThreshold] = []
    for far in FARS:
        threshold = strict_threshold(old_self.impostor, far)
        new_threshold = strict_threshold(cross.impostor, far)
        rows.append(
            AtOldThreshold(
                far,
                threshold,
                _interval(sampled_thresholds(old_self.pairs, draws, far)),
                new_threshold,
                _interval(sampled_thresholds(cross.pairs, draws, far)),
                old=_accepted(old_self.pairs, threshold, draws),
                cross=_accepted(cross.pairs, threshold, draws),
                mapped=None if mapped is None else _accepted(mapped, threshold, draws),
                own_tar=float(np.mean(cross.genuine > new_threshold)),
            )
        )
    return tuple(rows)


def _accepted(pairs: ScoredPairs, threshold: float, draws: Ints) -> Accepted:
    passed = pairs.impostor > threshold
    samples = sampled_mean(passed.astype(np.float64), pairs.impostor_classes, draws)
    tar = float(np.mean(pairs.genuine > threshold))
    return Accepted(tar, float(np.mean(passed)), _interval(samples))


def _interval(samples: Floats) -> tuple[float, float]:
    finite = samples[np.isfinite(samples)]
    if not len(finite):
        return -np.inf, np.inf
    over_classes = estimate(finite[:1], finite[None])
    return over_classes.low, over_classes.high


def _mapped_pairs(
    old_self: SearchTest, cross: SearchTest, score_map: ScoreMap | None, seed: int
) -> ScoredPairs | None:
    """Return the cross test's pairs with their scores on the old scale.

    None if there are too few pairs to fit a map.
    """
    pairs = cross.pairs
    if score_map is not None:
        return replace(pairs, genuine=score_map(pairs.genuine), impostor=score_map(pairs.impostor))
    genuine, impostor = (np.empty(len(s)) for s in (pairs.genuine, pairs.impostor))
    fold_of = np.random.default_rng([seed, 4]).permutation(cross.classes) % _FOLDS
    for fold in range(_FOLDS):
        others = fold_of != fold
        try:
            fitted = fit_score_map(_impostors(cross, others), _impostors(old_self, others))
        except UserError:  # too few pairs, or all of them score the same
            return None
        for scores, mapped, classes in (
            (pairs.genuine, genuine, pairs.genuine_classes),
            (pairs.impostor, impostor, pairs.impostor_classes),
        ):
            tested = ~others[classes]
            mapped[tested] = fitted(scores[tested])
    return replace(pairs, genuine=genuine, impostor=impostor)


def _impostors(test: SearchTest, chosen: NDArray[np.bool_]) -> Floats:
    """Return the impostor scores within the chosen classes.

    Where the scores of all pairs are not kept, only the query's class is known.
    """
    if test.scores is None:
        return test.impostor[chosen[test.pairs.impostor_classes]]
    rows = chosen[test.query_classes]
    scores = test.scores[rows][:, chosen]
    columns = np.flatnonzero(chosen)
    return scores[test.query_classes[rows][:, None] != columns[None, :]]
