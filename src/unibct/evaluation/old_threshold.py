"""What changes for a deployed system: at the thresholds that it uses today, and query by query."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.errors import UserError
from unibct.evaluation.bootstrap import ClassDraws, sampled_mean, sampled_share, sampled_thresholds
from unibct.evaluation.criterion import Estimate, estimate
from unibct.evaluation.impostors import ClassParts, ScoreRanks
from unibct.evaluation.score_map import SCALED, ScoreMap, fit_score_maps
from unibct.evaluation.score_table import Groups
from unibct.evaluation.search_test import ScoredPairs, SearchTest
from unibct.evaluation.verification import strict_thresholds


class ClassMaps(NamedTuple):
    """A score map for the queries of each class, for scores of classes that did not fit it."""

    maps: list[ScoreMap]  # the different ones
    of_class: Ints  # (classes,) which of them a class has

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


def same_map(score_map: ScoreMap, classes: int) -> ClassMaps:
    """Return one map for the queries of all classes."""
    return ClassMaps([score_map], np.zeros(classes, dtype=np.int64))


class Acceptance(NamedTuple):
    """How many pairs of each class a threshold accepts, and how many there are; all (classes,)."""

    genuine: Ints  # accepted genuine pairs
    impostors: Ints  # accepted impostor pairs, by the class of the query
    all_genuine: Ints
    all_impostors: Ints

    @property
    def tar(self) -> float:
        """The share of genuine pairs that are accepted."""
        return int(self.genuine.sum()) / int(self.all_genuine.sum())

    @property
    def far(self) -> float:
        """The share of impostor pairs that are accepted."""
        return int(self.impostors.sum()) / int(self.all_impostors.sum())

    def sampled_tar(self, draws: ClassDraws) -> Floats:
        """Return (repeats,): TAR where the pairs of a class count as it is drawn."""
        return sampled_share(self.genuine, self.all_genuine, draws)

    def sampled_far(self, draws: ClassDraws) -> Floats:
        """Return (repeats,): FAR where the pairs of a class count as it is drawn."""
        return sampled_share(self.impostors, self.all_impostors, draws)


def acceptances(
    pairs: ScoredPairs,
    thresholds: Sequence[float],
    classes: int,
    maps: Mapping[str, ClassMaps | None],
) -> dict[str, list[Acceptance]]:
    """Return what each threshold accepts: for each name in ``maps``, an entry per threshold.

    A score above a threshold is accepted. A map puts the scores on another scale first; None leaves
    them as they are. ``classes`` is how many the queries have.
    """
    genuine: list[Ints] = []
    limits: list[Floats] = []
    for score_map in maps.values():
        scores = pairs.genuine
        if score_map is not None:
            scores = score_map.mapped(scores, pairs.genuine_classes)
        for threshold in thresholds:
            accepted = pairs.genuine_classes[scores > threshold]
            genuine.append(np.bincount(accepted, minlength=classes))
            limits.append(
                np.full(classes, threshold)
                if score_map is None
                else score_map.limits(threshold, pairs.genuine.dtype)
            )
    impostors = pairs.impostor.counts_above(np.stack(limits))
    all_genuine = np.bincount(pairs.genuine_classes, minlength=classes)
    all_impostors = pairs.impostor.class_counts(classes)
    counted = iter(
        Acceptance(right, wrong, all_genuine, all_impostors)
        for right, wrong in zip(genuine, impostors, strict=True)
    )
    return {name: [next(counted) for _ in thresholds] for name in maps}


# What the cross test accepts at the thresholds that the old system uses today.

FARS = (1e-2, 1e-3, 1e-4)
# Where an old threshold can stay: twice the rate at most, and this share of the matches lost.
MOST_LOST = 0.05
# Whose scores are compared with the old threshold, by their names in results; ``SCALED`` is one.
OLD, AS_IT_IS, MAPPED = "old", "cross", "mapped"
_FOLDS = 5

Interval = tuple[float, float]


@dataclass(frozen=True)
class Accepted:
    """The shares of genuine and of impostor pairs that a threshold accepts, and FAR's interval."""

    tar: float
    far: float
    far_interval: Interval


@dataclass(frozen=True, kw_only=True)
class AtOldThreshold:
    """One false accept rate: the old threshold, and the threshold that the new model needs."""

    far: float  # the false accept rate that the threshold was set for
    threshold: float  # of old→old at that rate
    interval: Interval  # of the threshold, over test classes
    new_threshold: float  # of new→old at that rate
    new_interval: Interval
    old: Accepted  # by the old system at its threshold
    cross: Accepted  # in the cross test at the old threshold
    # The same after the score map, which was fitted on other classes; None if it was fitted on too
    # few pairs for this rate, or cannot be fitted.
    mapped: Accepted | None
    scaled: Accepted | None  # of scores times the new model's score scale; None if not known
    own_tar: float  # TAR of the cross test at its own threshold

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines; the rate is the key under which they stand."""
        return {name: value for name, value in asdict(self).items() if name != "far"}

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
    """Measure the cross test at the thresholds of the old self test, with intervals by ``draws``.

    ``score_map`` was fitted on other data. By default the classes are divided into five parts,
    which ``seed`` chooses, and the queries of each part are mapped by what the other parts gave.
    ``score_scale`` is the new model's, if it is known.
    """
    maps = old_scale_maps(old_self, cross, score_map, score_scale, seed)
    thresholds = strict_thresholds(old_self.impostor, FARS)
    new_thresholds = strict_thresholds(cross.impostor, FARS)
    accepted = accepted_at(old_self, cross, [thresholds[far] for far in FARS], maps)
    fitted = maps[MAPPED].maps if MAPPED in maps else []

    def summary(way: str, row: int) -> Accepted:
        acceptance = accepted[way][row]
        low, high = _interval(acceptance.far, acceptance.sampled_far(draws), draws)
        return Accepted(acceptance.tar, acceptance.far, (max(low, 0.0), min(high, 1.0)))

    def threshold_interval(threshold: float, test: SearchTest, far: float) -> Interval:
        return _interval(threshold, sampled_thresholds(test.pairs, draws, far), draws)

    return tuple(
        AtOldThreshold(
            far=far,
            threshold=thresholds[far],
            interval=threshold_interval(thresholds[far], old_self, far),
            new_threshold=new_thresholds[far],
            new_interval=threshold_interval(new_thresholds[far], cross, far),
            old=summary(OLD, row),
            cross=summary(AS_IT_IS, row),
            mapped=summary(MAPPED, row)
            if fitted and all(one.supports(far) for one in fitted)
            else None,
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
        maps[SCALED] = same_map(ScoreMap(SCALED, score_scale), cross.classes)
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


def _interval(value: float, samples: Floats, draws: ClassDraws) -> Interval:
    finite = samples[np.isfinite(samples)]
    if not (len(finite) and np.isfinite(value)):
        return -np.inf, np.inf
    over_classes = estimate(np.array([value]), finite[None], classes=draws.drawn)
    return over_classes.low, over_classes.high


def _fitted_maps(old_self: SearchTest, cross: SearchTest, seed: int) -> ClassMaps | None:
    """Return a score map for each class, fitted on other classes; None with too few pairs."""
    fold_of = np.random.default_rng([seed, 4]).permutation(cross.classes) % _FOLDS
    parts = ClassParts(fold_of, ~np.eye(_FOLDS, dtype=bool))
    impostors = [ScoreRanks(test.impostor.table, parts) for test in (cross, old_self)]
    try:
        return ClassMaps(fit_score_maps(*impostors), fold_of)
    except UserError:  # too few pairs, or all of them score the same
        return None


# Queries whose answer changes with the upgrade: right before and wrong now, or the reverse.


class Flips(NamedTuple):
    """The shares of queries that flip at top-1, each with its interval."""

    nfr: Estimate  # negative flip rate: right under old→old and wrong now
    pfr: Estimate  # positive flip rate, the reverse; PFR − NFR is the change of top-1
    # NFR / ((1 − ER_old)·ER_now) with the error rates ER; 1 if the errors now are independent of
    # the old ones
    relative_nfr: Estimate

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        rates = self._asdict().items()
        intervals = {name: [rate.low, rate.high] for name, rate in rates}
        return {name: rate.mean for name, rate in rates} | {"intervals": intervals}


def flip_rates(old_self: SearchTest, now: SearchTest) -> dict[str, float]:
    """Return NFR, PFR and relative NFR of two tests of the same queries."""
    means = [float(np.mean(part)) for part in _flips(old_self, now)]
    return {name: float(value[0]) for name, value in _rates(np.array(means)[:, None]).items()}


def sampled_flip_rates(
    old_self: SearchTest, now: SearchTest, draws: ClassDraws
) -> dict[str, Floats]:
    """Return (repeats,) values of the three rates for drawn classes."""
    means = [sampled_mean(part, now.query_classes, draws) for part in _flips(old_self, now)]
    return _rates(np.stack(means))


def flips_of(old_self: SearchTest, now: SearchTest, draws: ClassDraws) -> Flips:
    """Return the flip rates of the test after the upgrade, with intervals over classes."""
    samples = sampled_flip_rates(old_self, now, draws)
    rates = {
        name: estimate(np.array([rate]), samples[name][None], classes=draws.drawn)
        for name, rate in flip_rates(old_self, now).items()
    }
    return Flips(**{n: replace(rate, low=max(rate.low, 0.0)) for n, rate in rates.items()})


def _flips(old_self: SearchTest, now: SearchTest) -> list[Floats]:
    """Return per query: flipped to wrong, flipped to right, right before, wrong now."""
    was_right, is_right = old_self.ranks == 0, now.ranks == 0
    parts = (was_right & ~is_right, ~was_right & is_right, was_right, ~is_right)
    return [part.astype(np.float64) for part in parts]


def _rates(means: Floats) -> dict[str, Floats]:
    """Return the rates from (4, n) means of ``_flips``. Where nothing can flip, the rate is 0."""
    nfr, pfr, right_before, wrong_now = means
    expected = right_before * wrong_now
    relative = np.divide(nfr, expected, out=np.zeros_like(nfr), where=expected > 0)
    return {"nfr": nfr, "pfr": pfr, "relative_nfr": relative}
