"""1:1 verification and 1:N identification, from scores and labels alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    checked_embeddings,
    checked_labels,
    normalized,
    require_same_dim,
    to_numpy,
)
from unibct.errors import UserError

Floats: TypeAlias = NDArray[np.floating[Any]]
ThresholdRule: TypeAlias = Literal["strict", "nearest"]

_BLOCK_ENTRIES = 16_000_000  # scores held at a time


def verification(
    query: Any,
    gallery: Any,
    same: Any,
    *,
    fars: Iterable[float] = (1e-4,),
    rule: ThresholdRule = "strict",
) -> dict[float, float]:
    """TAR at each FAR over row-wise pairs, scored by cosine.

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
    given = to_numpy(same)
    genuine = given.astype(bool) if given.dtype.kind in "biuf" else np.zeros(0, dtype=bool)
    if given.dtype.kind not in "biuf" or not np.array_equal(given, genuine):
        raise UserError("same must be True or False (or 1 or 0) for each pair")
    if genuine.shape != (len(query),):
        raise UserError(f"same must have the shape ({len(query)},), not {genuine.shape}")
    scores = np.einsum("ij,ij->i", query, gallery)
    return tar_at_far(scores[genuine], scores[~genuine], fars, rule=rule)


def tar_at_far(
    genuine: Floats, impostor: Floats, fars: Iterable[float], *, rule: ThresholdRule = "strict"
) -> dict[float, float]:
    """The share of genuine scores accepted at each false accept rate.

    ``strict``: the lowest threshold whose achieved FAR does not exceed the target; a score is
    accepted if it lies above the highest impostor that must be refused. ``nearest``: the field's
    scripts, the corner of the ROC curve whose FAR is nearest to the target, on either side.
    """
    fars = list(fars)
    for far in fars:
        if not 0 < far <= 1:
            raise UserError(f"a false accept rate lies in (0, 1], not {far}")
    if not len(genuine) or not len(impostor):
        missing = "genuine" if not len(genuine) else "impostor"
        raise UserError(f"there is no {missing} pair: a TAR at FAR needs both kinds")
    if rule == "nearest":
        return _tar_at_nearest_far(genuine, impostor, fars)
    if rule != "strict":
        raise UserError(f"unknown threshold rule {rule!r}; choose strict or nearest")
    return {far: float(np.mean(genuine > strict_threshold(impostor, far))) for far in fars}


def strict_threshold(impostor: Floats, far: float) -> float:
    """The score above which at most floor(far · n) of the n impostor scores lie."""
    allowed = int(far * len(impostor) + 1e-9)
    if allowed >= len(impostor):
        return -np.inf
    return float(np.partition(impostor, len(impostor) - 1 - allowed)[len(impostor) - 1 - allowed])


def fold_accuracy(scores: Floats, same: NDArray[np.bool_], *, folds: int = 10) -> "FoldAccuracy":
    """The accuracy of pairs, each fold with the threshold that is best on the others.

    As the field does it: folds are consecutive pairs, and the threshold is the best of 400 squared
    distances 2 − 2·score from 0 to 3.99 (of equally good ones the smallest).
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
    return FoldAccuracy(np.bincount(fold, weights=correct) / sizes, correct)


@dataclass(frozen=True)
class FoldAccuracy:
    """The accuracy of each fold, and which pairs are right."""

    folds: Floats
    correct: NDArray[np.bool_]

    @property
    def mean(self) -> float:
        """Over the folds, as the field reports it."""
        return float(self.folds.mean())


@dataclass(frozen=True)
class Roc:
    """FAR and TAR at each distinct score, from the strictest threshold to the loosest."""

    far: Floats
    tar: Floats


def roc_curve(genuine: Floats, impostor: Floats) -> Roc:
    """The receiver operating characteristic, only its corners."""
    scores = np.concatenate([genuine, impostor])
    is_genuine = np.zeros(len(scores), dtype=bool)
    is_genuine[: len(genuine)] = True
    order = np.argsort(-scores, kind="stable")
    scores, is_genuine = scores[order], is_genuine[order]
    last_of_score = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    accepted_genuine = np.cumsum(is_genuine)[last_of_score]
    accepted_impostor = last_of_score + 1 - accepted_genuine
    turns = np.diff(accepted_genuine, 2) | np.diff(accepted_impostor, 2)
    ends = [0, len(accepted_genuine) - 1]
    corners = np.union1d(np.flatnonzero(turns) + 1, ends)
    accepted_genuine = np.append(0, accepted_genuine[corners])
    accepted_impostor = np.append(0, accepted_impostor[corners])
    return Roc(far=accepted_impostor / len(impostor), tar=accepted_genuine / len(genuine))


def _tar_at_nearest_far(
    genuine: Floats, impostor: Floats, fars: Sequence[float]
) -> dict[float, float]:
    roc = roc_curve(genuine, impostor)
    # Of equally near corners the field's scripts take the one with the most accepted.
    return {far: float(roc.tar[::-1][np.abs(roc.far[::-1] - far).argmin()]) for far in fars}


def identification(
    query: Any,
    query_labels: Any,
    gallery: Any,
    gallery_labels: Any,
    *,
    ks: Iterable[int] = (1, 5),
) -> dict[int, float]:
    """The share of queries that find an entry of their own class among the k best.

    Closed set: each query's class must be in the gallery. An entry of another class that scores
    exactly as high as the mate stands before it, so that no order of the gallery can flatter.

    Returns:
        k -> accuracy.
    """
    query = normalized(checked_embeddings(query, "query"))
    gallery = normalized(checked_embeddings(gallery, "gallery"))
    require_same_dim(query, "query", gallery, "gallery")
    query_labels = checked_labels(query_labels, len(query), "query_labels")
    gallery_labels = checked_labels(gallery_labels, len(gallery), "gallery_labels")
    if not len(query):
        raise UserError("query is empty: there is nothing to identify")
    missing = ~np.isin(query_labels, gallery_labels)
    if missing.any():
        row = int(missing.argmax())
        raise UserError(
            f"query row {row} has label {int(query_labels[row])}, which no gallery entry has; "
            "closed-set identification needs a mate for each query"
        )
    ks = list(ks)
    for k in ks:
        if k < 1:
            raise UserError(f"k must be at least 1, not {k}")
    block = max(1, _BLOCK_ENTRIES // len(gallery))
    ranks = np.concatenate(
        [
            mate_ranks(
                query[i : i + block] @ gallery.T, query_labels[i : i + block], gallery_labels
            )
            for i in range(0, len(query), block)
        ]
    )
    return {k: float(np.mean(ranks < k)) for k in ks}


def mate_ranks(
    scores: Floats, query_labels: NDArray[np.int64], gallery_labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many entries of other classes score at least as high as each query's best mate.

    Args:
        scores: (queries, gallery).
        query_labels: (queries,).
        gallery_labels: (gallery,), with at least one mate for each query.
    """
    mates = query_labels[:, None] == gallery_labels[None, :]
    best_mate = np.where(mates, scores, -np.inf).max(axis=1)
    return ((scores >= best_mate[:, None]) & ~mates).sum(axis=1)
