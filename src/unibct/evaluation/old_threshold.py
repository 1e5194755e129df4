"""What the cross test accepts at the thresholds that the old system uses today."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Floats
from unibct.errors import UserError
from unibct.evaluation.acceptance import Acceptance, acceptances
from unibct.evaluation.bootstrap import ClassDraws, sampled_thresholds
from unibct.evaluation.class_maps import ClassMaps, same_map
from unibct.evaluation.criterion import estimate
from unibct.evaluation.metrics.verification import strict_thresholds
from unibct.evaluation.scale_map import ScaleMap
from unibct.evaluation.score_map import ScoreMap, fit_score_maps
from unibct.evaluation.score_ranks import ClassParts, ScoreRanks
from unibct.evaluation.search_test import SearchTest

FARS = (1e-2, 1e-3, 1e-4)
# Where an old threshold can stay: twice the rate at most, and this share of the matches lost.
MOST_LOST = 0.05
# Whose scores are compared with the old threshold, by their names in results.
OLD, AS_IT_IS, MAPPED, SCALED = "old", "cross", "mapped", "scaled"
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
        mapped: the same after the score map, which was fitted on other classes; None if it was
            fitted on too few pairs for this rate, or cannot be fitted.
        scaled: the same of scores times the new model's score scale; None if that is not known.
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
    scaled: Accepted | None
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
            "scaled": None if self.scaled is None else self.scaled.as_json(),
            "own_tar": self.own_tar,
        }

    @property
    def needs_new_threshold(self) -> bool:
        """Whether the cross test loses matches, or lets impostors in, at the old threshold."""
        return self.cross.tar < (1 - MOST_LOST) * self.own_tar or self.cross.far > 2 * self.far


def at_old_thresholds(
    old_self: SearchTest,
    cross: SearchTest,
    draws: ClassDraws,
    *,
    score_map: ScoreMap | None = None,
    score_scale: float | None = None,
    seed: int = 0,
) -> tuple[AtOldThreshold, ...]:
    """Measure the cross test at the thresholds of the old self test.

    Args:
        old_self: the old model's self test.
        cross: new queries in the old gallery; the same queries.
        draws: how often each class counts in each repeat, for the intervals.
        score_map: a map that was fitted on other data. By default the classes are divided into
            five parts, and the queries of each part are mapped by what the other parts gave.
        score_scale: the new model's, if it is known.
        seed: chooses the parts.
    """
    maps = old_scale_maps(old_self, cross, score_map, score_scale, seed)
    thresholds = strict_thresholds(old_self.impostor, FARS)
    new_thresholds = strict_thresholds(cross.impostor, FARS)
    accepted = accepted_at(old_self, cross, [thresholds[far] for far in FARS], maps)

    classes = draws.drawn

    def summary(way: str, row: int) -> Accepted:
        acceptance = accepted[way][row]
        low, high = _interval(acceptance.far, acceptance.sampled_far(draws), classes)
        return Accepted(acceptance.tar, acceptance.far, (max(low, 0.0), min(high, 1.0)))

    return tuple(
        AtOldThreshold(
            far,
            thresholds[far],
            _interval(thresholds[far], sampled_thresholds(old_self.pairs, draws, far), classes),
            new_thresholds[far],
            _interval(new_thresholds[far], sampled_thresholds(cross.pairs, draws, far), classes),
            old=summary(OLD, row),
            cross=summary(AS_IT_IS, row),
            mapped=summary(MAPPED, row) if _is_mapped(maps, far) else None,
            scaled=summary(SCALED, row) if SCALED in maps else None,
            own_tar=float(np.mean(cross.genuine > new_thresholds[far])),
        )
        for row, far in enumerate(FARS)
    )


def old_scale_maps(
    old_self: SearchTest,
    cross: SearchTest,
    score_map: ScoreMap | None = None,
    score_scale: float | None = None,
    seed: int = 0,
) -> dict[str, ClassMaps]:
    """Return the ways to put cross-test scores on the old scale, see ``at_old_thresholds``."""
    if score_map is not None:
        maps = {MAPPED: same_map(score_map, cross.classes)}
    else:
        fitted = _fitted_maps(old_self, cross, seed)
        maps = {} if fitted is None else {MAPPED: fitted}
    if score_scale is not None:
        maps[SCALED] = same_map(ScaleMap(score_scale), cross.classes)
    return maps


def accepted_at(
    old_self: SearchTest,
    cross: SearchTest,
    thresholds: Sequence[float],
    maps: Mapping[str, ClassMaps],
) -> dict[str, list[Acceptance]]:
    """Return what old queries, new queries and mapped new queries accept at each threshold."""
    crossed: dict[str, ClassMaps | None] = {AS_IT_IS: None, **maps}
    return acceptances(old_self.pairs, thresholds, cross.classes, {OLD: None}) | acceptances(
        cross.pairs, thresholds, cross.classes, crossed
    )


def _is_mapped(maps: Mapping[str, ClassMaps], far: float) -> bool:
    """Return whether there are score maps, fitted on enough pairs for a false accept rate."""
    fitted = maps[MAPPED].maps if MAPPED in maps else []
    return bool(fitted) and all(one.supports(far) for one in fitted if isinstance(one, ScoreMap))


def _interval(value: float, samples: Floats, classes: int) -> tuple[float, float]:
    finite = samples[np.isfinite(samples)]
    if not (len(finite) and np.isfinite(value)):
        return -np.inf, np.inf
    over_classes = estimate(np.array([value]), finite[None], classes=classes)
    return over_classes.low, over_classes.high


def _fitted_maps(old_self: SearchTest, cross: SearchTest, seed: int) -> ClassMaps | None:
    """Return a score map for each class, fitted on other classes.

    None if there are too few pairs to fit a map.
    """
    fold_of = np.random.default_rng([seed, 4]).permutation(cross.classes) % _FOLDS
    members = ~np.eye(_FOLDS, dtype=bool)
    parts = ClassParts(fold_of, members)
    impostors = [ScoreRanks(test.impostor.table, parts) for test in (cross, old_self)]
    try:
        return ClassMaps(list(fit_score_maps(*impostors)), fold_of)
    except UserError:  # too few pairs, or all of them score the same
        return None
