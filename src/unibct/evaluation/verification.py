"""1:1 verification: thresholds, TAR at FAR, the ROC curve, and 10-fold accuracy of pairs."""

import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    Floats,
    Ints,
    checked_embeddings,
    lowered,
    normalized,
    require_same_dim,
    to_numpy,
)
from unibct.errors import UserError
from unibct.evaluation.impostors import Impostors, as_impostors

ThresholdRule: TypeAlias = Literal["strict", "nearest"]


def verification(
    query: Any,
    gallery: Any,
    same: Any,
    *,
    fars: Iterable[float] = (1e-4,),
    rule: ThresholdRule = "strict",
) -> dict[float, float]:
    """Return far -> TAR over row-wise pairs, scored by cosine.

    Args:
        query: (pairs, dim), one side of each pair.
        gallery: (pairs, dim), the other side.
        same: (pairs,) whether the two sides show the same class.
        fars: false accept rates, each in (0, 1].
        rule: how the threshold is set, see ``tar_at_far``.
    """
    query = normalized(checked_embeddings(query, "query"))
    gallery = normalized(checked_embeddings(gallery, "gallery"))
    require_same_dim(query, "query", gallery, "gallery")
    if len(query) != len(gallery):
        raise UserError(
            f"query has {len(query)} rows but gallery has {len(gallery)}: pairs are row-wise"
        )
    is_genuine = checked_same(same)
    if len(is_genuine) != len(query):
        raise UserError(f"same must have the shape ({len(query)},), not {is_genuine.shape}")
    scores = np.einsum("ij,ij->i", query, gallery)
    return tar_at_far(lowered(scores[is_genuine]), scores[~is_genuine], fars, rule=rule)


def checked_same(same: Any) -> NDArray[np.bool_]:
    """Return (pairs,) whether the two sides of each pair show the same class."""
    given = to_numpy(same)
    is_genuine = given.astype(bool) if given.dtype.kind in "biuf" else np.zeros(0, dtype=bool)
    if given.dtype.kind not in "biuf" or not np.array_equal(given, is_genuine):
        raise UserError("same must be True or False (or 1 or 0) for each pair")
    if is_genuine.ndim != 1:
        raise UserError(f"same must have the shape (pairs,), not {is_genuine.shape}")
    return is_genuine


def tar_at_far(
    genuine: Floats,
    impostor: Floats | Impostors,
    fars: Iterable[float],
    *,
    rule: ThresholdRule = "strict",
) -> dict[float, float]:
    """Return the share of genuine scores that are accepted at each false accept rate.

    Args:
        genuine: scores of pairs of the same class.
        impostor: scores of pairs of different classes.
        fars: false accept rates, each in (0, 1].
        rule: ``strict`` takes the lowest threshold whose achieved FAR does not exceed the target:
            a score is accepted if it is above the highest impostor that must be refused.
            ``nearest`` does what the field's scripts do: it takes the corner of the ROC curve
            whose FAR is nearest to the target, on either side.
    """
    fars = [_checked_rate(far) for far in fars]
    if not len(genuine) or not len(impostor):
        missing = "genuine" if not len(genuine) else "impostor"
        raise UserError(f"there is no {missing} pair: a TAR at FAR needs both kinds")
    require_rule(rule)
    if rule == "nearest":
        roc = roc_curve(genuine, impostor)
        # Of equally near corners the field's scripts take the one that accepts the most.
        far_down, tar_down = roc.far[::-1], roc.tar[::-1]
        return {far: float(tar_down[np.abs(far_down - far).argmin()]) for far in fars}
    thresholds = strict_thresholds(impostor, fars)
    return {far: float(np.mean(genuine > thresholds[far])) for far in fars}


def _checked_rate(far: float) -> float:
    if not 0 < far <= 1:
        raise UserError(f"a false accept rate lies in (0, 1], not {far}")
    return far


def require_rule(rule: str) -> None:
    """Refuse a threshold rule that does not exist."""
    if rule not in get_args(ThresholdRule):
        rules = " or ".join(get_args(ThresholdRule))
        raise UserError(f"unknown threshold rule {rule!r}; choose {rules}")


def strict_thresholds(impostor: Floats | Impostors, fars: Iterable[float]) -> dict[float, float]:
    """Return far -> the score above which at most floor(far · n) of the n impostor scores are."""
    allowed = {far: int(far * len(impostor) + 1e-9) for far in fars}
    ranks = np.array([rank for rank in allowed.values() if rank < len(impostor)], dtype=np.int64)
    at_ranks = as_impostors(impostor).at_ranks(ranks)
    scores = dict(zip(ranks.tolist(), at_ranks.tolist(), strict=True))
    return {far: scores.get(rank, -np.inf) for far, rank in allowed.items()}


def strict_threshold(impostor: Floats | Impostors, far: float) -> float:
    """Return the strict threshold at one FAR."""
    return strict_thresholds(impostor, [far])[far]


class Roc(NamedTuple):
    """FAR and TAR at each distinct score, from the strictest threshold to the loosest."""

    far: Floats
    tar: Floats


def roc_curve(genuine: Floats, impostor: Floats | Impostors) -> Roc:
    """Return the corners of the receiver operating characteristic.

    Between two genuine scores only impostors are accepted, so there is no corner. It is enough to
    know how many impostors score above each genuine score, and how many exactly as high.
    """
    impostors = as_impostors(impostor)
    highest = impostors.at_ranks(np.zeros(1, dtype=np.int64))
    scores = np.unique(np.concatenate([genuine, highest]))[::-1]
    above, equal = impostors.counts_from(scores)
    ascending = np.sort(genuine)
    genuine_above, genuine_at_least = (
        len(genuine) - np.searchsorted(ascending, scores, side=side) for side in ("right", "left")
    )
    # The steps end before each score and after it, and after the last impostor.
    accepted_genuine = np.stack([genuine_above, genuine_at_least], axis=1).ravel()
    accepted_impostor = np.stack([above, above + equal], axis=1).ravel()
    accepted_genuine = np.append(accepted_genuine, len(genuine))
    accepted_impostor = np.append(accepted_impostor, len(impostors))
    moves = np.diff(accepted_genuine + accepted_impostor, prepend=0) > 0
    accepted_genuine, accepted_impostor = accepted_genuine[moves], accepted_impostor[moves]
    # A corner is where the direction changes. Scores that tie make a longer step, but no corner.
    genuine_steps, impostor_steps = np.diff(accepted_genuine), np.diff(accepted_impostor)
    turns = genuine_steps[1:] * impostor_steps[:-1] != genuine_steps[:-1] * impostor_steps[1:]
    corners = np.union1d(np.flatnonzero(turns) + 1, [0, len(accepted_genuine) - 1])
    accepted_genuine = np.append(0, accepted_genuine[corners])
    accepted_impostor = np.append(0, accepted_impostor[corners])
    return Roc(far=accepted_impostor / len(impostors), tar=accepted_genuine / len(genuine))


# Which false accept rates a number of classes can measure, and what to call them.

HEADLINE_FAR = 1e-4
REPORTED_FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# Thirty independent errors measure a rate to about ±30 % (Doddington's rule). If two classes look
# alike, all their impostor pairs score high together, so class pairs are counted.
_CLASS_PAIRS_NEEDED = 30


def carried_fars(classes: int) -> list[float]:
    """Return those of the reported false accept rates that this number of classes can measure."""
    return [far for far in REPORTED_FARS if _is_carried(far, classes)]


def _is_carried(far: float, classes: int) -> bool:
    return far * classes * (classes - 1) / 2 + 1e-9 >= _CLASS_PAIRS_NEEDED


def headline_far(classes: int, wanted: float | None = None) -> float:
    """Return the rate that a user wants, or the smallest of 1e-4, … that the classes can measure.

    What is wanted is taken as it is, even if it cannot be measured well; ``far_note`` warns.
    """
    if wanted is not None:
        return _checked_rate(wanted)
    carried = (far for far in carried_fars(classes) if far >= HEADLINE_FAR)
    return next(carried, REPORTED_FARS[-1])


def far_note(far: float, wanted: float | None, classes: int, what: str = "classes") -> str | None:
    """Say what a reader must know about the headline's rate, if anything.

    ``wanted`` is the rate that the user asked for, ``what`` the word for the classes.
    """
    if not _is_carried(far, classes):
        needed = math.ceil((1 + math.sqrt(1 + 8 * _CLASS_PAIRS_NEEDED / far)) / 2 - 1e-9)
        return (
            f"{classes} {what} are too few to measure {tar_name(far)} well (look at its interval): "
            f"{needed} are needed"
        )
    if wanted is not None or far == HEADLINE_FAR:
        return None
    return (
        f"{tar_name(far)} instead of {tar_name(HEADLINE_FAR)}: "
        f"{classes} {what} cannot measure a smaller false accept rate"
    )


def tar_name(far: float) -> str:
    """Return what a table calls the TAR at ``far``, such as TAR@1e-3."""
    return f"TAR@{rate_name(far)}"


def rate_name(far: float) -> str:
    """Return how a rate is written, such as 1e-3."""
    power = f"{far:.0e}".replace("e-0", "e-")
    return power if float(power) == far and far < 1 else f"{far:g}"


# 10-fold accuracy of pairs, as LFW, CFP-FP and AgeDB-30 report it.


class FoldAccuracy(NamedTuple):
    """The accuracy of each fold, and which pairs are right."""

    folds: Floats  # (folds,) the accuracy of each
    correct: NDArray[np.bool_]  # (pairs,) whether a pair is right at its fold's threshold
    counts: Ints  # (folds, thresholds) the right pairs of each fold at each possible threshold
    sizes: Ints  # (folds,) how many pairs each has

    @property
    def mean(self) -> float:
        """The mean over the folds, as the field reports it."""
        return float(self.folds.mean())

    def sampled(self, draws: Ints) -> Floats:
        """Return (repeats,): the mean accuracy of drawn folds.

        ``draws`` are (repeats, folds): how often each is drawn; at least two are. Each fold gets
        the threshold that is best on the other drawn folds, so that the chance in the thresholds
        counts too.
        """
        counts = self.counts.astype(np.float64)  # a product of integers would be slow
        drawn_counts = draws.astype(np.float64) @ counts
        sums = np.zeros(len(draws))
        for fold, times in enumerate(draws.T):
            best = (drawn_counts - times[:, None] * counts[fold]).argmax(axis=1)
            sums += times * counts[fold, best] / self.sizes[fold]
        return sums / draws.sum(axis=1)


def fold_accuracy(scores: Floats, same: NDArray[np.bool_], *, folds: int = 10) -> FoldAccuracy:
    """Return the accuracy of pairs, each fold with the threshold that is best on the others.

    This is the field's procedure: folds are consecutive pairs, and the threshold is the best of
    400 squared distances 2 − 2·score from 0 to 3.99 (the smallest if several are equally good).
    ``scores`` are (pairs,) cosines, ``same`` (pairs,) whether the two images show the same class.
    """
    if len(scores) != len(same) or len(scores) < folds or folds < 2:
        raise UserError(f"{len(scores)} pairs cannot be divided into {folds} folds")
    distance = 2 - 2 * np.asarray(scores, dtype=np.float64)
    thresholds = np.arange(0, 4, 0.01)
    # A pair is right at a threshold if it is accepted and genuine, or neither.
    fold = np.repeat(np.arange(folds), [len(f) for f in np.array_split(scores, folds)])
    right = np.stack([(distance < threshold) == same for threshold in thresholds], axis=1)
    counts = np.stack([right[fold == number].sum(axis=0) for number in range(folds)])
    best = (counts.sum(axis=0) - counts).argmax(axis=1)
    correct = right[np.arange(len(scores)), best[fold]]
    sizes = np.bincount(fold)
    return FoldAccuracy(np.bincount(fold, weights=correct) / sizes, correct, counts, sizes)
