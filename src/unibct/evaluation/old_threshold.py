"""What happens at the thresholds that the old system uses today."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.errors import UserError
from unibct.evaluation.bootstrap import sampled_share, sampled_thresholds
from unibct.evaluation.criterion import estimate
from unibct.evaluation.metrics.verification import strict_thresholds
from unibct.evaluation.score_map import ScoreMap, fit_score_maps
from unibct.evaluation.score_ranks import ClassParts, ScoreRanks
from unibct.evaluation.score_table import Groups
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
    maps = _maps(old_self, cross, score_map, seed)
    thresholds = strict_thresholds(old_self.impostor, FARS)
    new_thresholds = strict_thresholds(cross.impostor, FARS)
    asked = [thresholds[far] for far in FARS]
    olds = _accepted(old_self.pairs, asked, draws)
    crosses = _accepted(cross.pairs, asked, draws, maps)
    return tuple(
        AtOldThreshold(
            far,
            thresholds[far],
            _interval(sampled_thresholds(old_self.pairs, draws, far)),
            new_thresholds[far],
            _interval(sampled_thresholds(cross.pairs, draws, far)),
            old=olds[row],
            cross=crosses[row],
            mapped=None if maps is None else crosses[len(FARS) + row],
            own_tar=float(np.mean(cross.genuine > new_thresholds[far])),
        )
        for row, far in enumerate(FARS)
    )


def _accepted(
    pairs: ScoredPairs, thresholds: list[float], draws: Ints, maps: "_ClassMaps | None" = None
) -> list[Accepted]:
    """Return what each threshold accepts; then, if there are maps, the same of mapped scores."""
    classes = int(draws.shape[1])
    genuine = [pairs.genuine > threshold for threshold in thresholds]
    limits = [np.full(classes, threshold) for threshold in thresholds]
    if maps is not None:
        mapped = maps.mapped(pairs.genuine, pairs.genuine_classes)
        genuine += [mapped > threshold for threshold in thresholds]
        limits += [maps.limits(threshold, pairs.genuine.dtype) for threshold in thresholds]
    passed = pairs.impostor.counts_above(np.stack(limits))
    impostors = pairs.impostor.class_counts(classes)
    return [
        Accepted(
            float(np.mean(is_accepted)),
            int(counts.sum()) / len(pairs.impostor),
            _interval(sampled_share(counts, impostors, draws)),
        )
        for is_accepted, counts in zip(genuine, passed, strict=True)
    ]


def _interval(samples: Floats) -> tuple[float, float]:
    finite = samples[np.isfinite(samples)]
    if not len(finite):
        return -np.inf, np.inf
    over_classes = estimate(finite[:1], finite[None])
    return over_classes.low, over_classes.high


@dataclass(frozen=True)
class _ClassMaps:
    """A score map for the queries of each class.

    Attributes:
        maps: the different ones.
        of_class: (classes,) which of them a class has.
    """

    maps: list[ScoreMap]
    of_class: Ints

    def mapped(self, scores: Floats, classes: Groups) -> Floats:
        """Return scores of queries of some classes on the old scale."""
        values = np.empty(len(scores))
        for number, score_map in enumerate(self.maps):
            chosen = self.of_class[classes] == number
            values[chosen] = score_map(scores[chosen])
        return values

    def limits(self, threshold: float, dtype: Any) -> Floats:
        """Return (classes,): the highest score of each that is not mapped above a threshold."""
        limits = [score_map.highest_up_to(threshold, dtype) for score_map in self.maps]
        return np.array(limits)[self.of_class]


def _maps(
    old_self: SearchTest, cross: SearchTest, score_map: ScoreMap | None, seed: int
) -> _ClassMaps | None:
    """Return the map of each class, which was fitted on other classes.

    None if there are too few pairs to fit a map.
    """
    if score_map is not None:
        return _ClassMaps([score_map], np.zeros(cross.classes, dtype=np.int64))
    fold_of = np.random.default_rng([seed, 4]).permutation(cross.classes) % _FOLDS
    members = ~np.eye(_FOLDS, dtype=bool)
    # Where the entries are no templates, only the query's class is known.
    impostors = [
        ScoreRanks(
            test.impostor.table, ClassParts(fold_of, members, both_sides=test.scores is not None)
        )
        for test in (cross, old_self)
    ]
    try:
        return _ClassMaps(fit_score_maps(*impostors), fold_of)
    except UserError:  # too few pairs, or all of them score the same
        return None
