"""1:1 verification: thresholds, TAR at FAR, and the ROC curve."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    Floats,
    checked_embeddings,
    lowered,
    normalized,
    require_same_dim,
    to_numpy,
)
from unibct.errors import UserError
from unibct.evaluation.impostors import Impostors, listed_impostors

ThresholdRule: TypeAlias = Literal["strict", "nearest"]


def verification(
    query: Any,
    gallery: Any,
    same: Any,
    *,
    fars: Iterable[float] = (1e-4,),
    rule: ThresholdRule = "strict",
) -> dict[float, float]:
    """Return the TAR at each FAR over row-wise pairs, scored by cosine.

    Args:
        query: (pairs, dim), one side of each pair.
        gallery: (pairs, dim), the other side.
        same: (pairs,) whether the two sides show the same class.
        fars: false accept rates, each in (0, 1].
        rule: how the threshold is set, see ``tar_at_far``.

    Returns:
        far -> TAR.
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
    fars = list(fars)
    for far in fars:
        require_rate(far)
    if not len(genuine) or not len(impostor):
        missing = "genuine" if not len(genuine) else "impostor"
        raise UserError(f"there is no {missing} pair: a TAR at FAR needs both kinds")
    require_rule(rule)
    if rule == "nearest":
        return _tar_at_nearest_far(genuine, impostor, fars)
    thresholds = strict_thresholds(impostor, fars)
    return {far: float(np.mean(genuine > thresholds[far])) for far in fars}


def require_rate(far: float) -> None:
    """Refuse a false accept rate outside (0, 1]."""
    if not 0 < far <= 1:
        raise UserError(f"a false accept rate lies in (0, 1], not {far}")


def require_rule(rule: str) -> None:
    """Refuse a threshold rule that does not exist."""
    if rule not in get_args(ThresholdRule):
        rules = " or ".join(get_args(ThresholdRule))
        raise UserError(f"unknown threshold rule {rule!r}; choose {rules}")


def strict_threshold(impostor: Floats | Impostors, far: float) -> float:
    """Return the score above which at most floor(far · n) of the n impostor scores are."""
    return strict_thresholds(impostor, [far])[far]


def strict_thresholds(impostor: Floats | Impostors, fars: Iterable[float]) -> dict[float, float]:
    """Return the strict threshold at each FAR, see ``strict_threshold``."""
    allowed = {far: int(far * len(impostor) + 1e-9) for far in fars}
    ranks = np.array([rank for rank in allowed.values() if rank < len(impostor)], dtype=np.int64)
    scores = dict(zip(ranks.tolist(), _listed(impostor).at_ranks(ranks).tolist(), strict=True))
    return {far: scores.get(rank, -np.inf) for far, rank in allowed.items()}


@dataclass(frozen=True)
class Roc:
    """FAR and TAR at each distinct score, from the strictest threshold to the loosest."""

    far: Floats
    tar: Floats


def roc_curve(genuine: Floats, impostor: Floats | Impostors) -> Roc:
    """Return the corners of the receiver operating characteristic.

    Between two genuine scores only impostors are accepted, so there is no corner. It is enough to
    know how many impostors score above each genuine score, and how many exactly as high.
    """
    impostors = _listed(impostor)
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
    ends = [0, len(accepted_genuine) - 1]
    corners = np.union1d(np.flatnonzero(turns) + 1, ends)
    accepted_genuine = np.append(0, accepted_genuine[corners])
    accepted_impostor = np.append(0, accepted_impostor[corners])
    return Roc(far=accepted_impostor / len(impostors), tar=accepted_genuine / len(genuine))


def _listed(impostor: Floats | Impostors) -> Impostors:
    return impostor if isinstance(impostor, Impostors) else listed_impostors(impostor)


def _tar_at_nearest_far(
    genuine: Floats, impostor: Floats | Impostors, fars: Sequence[float]
) -> dict[float, float]:
    roc = roc_curve(genuine, impostor)
    # Of equally near corners the field's scripts take the one that accepts the most.
    return {far: float(roc.tar[::-1][np.abs(roc.far[::-1] - far).argmin()]) for far in fars}
