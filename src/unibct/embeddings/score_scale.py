"""The score scale: one number that puts scores of new queries on the scale of the old system.

Scores of new queries with old rows spread less than scores of old queries do. The scale is the
ratio of the two spreads, over pairs of images of different classes. A score of a new query with
an old row, times the scale, can be compared with the old system's thresholds.

One number cannot move scores. If the old embeddings lie in a narrow cone, all scores are near 1,
and a scale would lift every one of them above the threshold. So there is a scale only where it
brings the mean of the scores to that of the old queries, too.

Pure functions of embeddings: ``training/validation.py`` measures a model's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from unibct import progress
from unibct.arrays import (
    Floats,
    Ints,
    checked_embeddings,
    checked_labels,
    normalized,
    require_same_dim,
)
from unibct.errors import UserError

SAMPLE_IMAGES = 4_096  # of the training set: 16 million pairs

_SMALLEST_VARIANCE = 1e-12  # of cosines; what is below is rounding
_LARGEST_SHIFT = 0.5  # of the mean, in old deviations: a FAR of 1 % is then 0.2 to 3.4 %


class NoScoreScaleError(UserError):
    """Raised if embeddings were measured and have no score scale. The message says why."""


def score_scale(new: Any, old: Any, labels: Any) -> float:
    """Return std(⟨old i, old j⟩) / std(⟨new i, old j⟩) over images i, j of different classes.

    It is exact over all pairs, and needs no memory for them.

    Args:
        new: (images, dim) the new model's embeddings, in the old space.
        old: (images, dim) the old model's embeddings of the same images.
        labels: (images,) integers, of two classes or more.

    Raises:
        NoScoreScaleError: if there is no such number, see above.
        UserError: if these are not two models' embeddings of the same images.
    """
    new_rows, old_rows = (
        normalized(checked_embeddings(rows, name).astype(np.float64, copy=False))
        for rows, name in ((new, "new"), (old, "old"))
    )
    require_same_dim(new_rows, "new", old_rows, "old")
    if len(new_rows) != len(old_rows):
        raise UserError(
            f"new has {len(new_rows)} rows but old has {len(old_rows)}: both need the same images"
        )
    members = _class_members(checked_labels(labels, len(new_rows)))
    (old_mean, old_variance), (new_mean, new_variance) = (
        _impostor_moments(rows, old_rows, members) for rows in (old_rows, new_rows)
    )
    if min(old_variance, new_variance) < _SMALLEST_VARIANCE:
        raise NoScoreScaleError(
            "images of different classes all score the same: there is no score scale"
        )
    scale = float(np.sqrt(old_variance / new_variance))
    if abs(scale * new_mean - old_mean) > _LARGEST_SHIFT * np.sqrt(old_variance):
        raise NoScoreScaleError(
            f"images of different classes score {old_mean:.3f} on average with old queries and "
            f"{new_mean:.3f} with new ones; times {scale:.3g}, which gives both the same spread, "
            f"that is {scale * new_mean:.3f}: no factor sets right both mean and spread, so there "
            "is no score scale; use a score map (unibct evaluate --save-score-map)"
        )
    return scale


def mapped_score_scale(
    vector_map: Callable[[Any], Any],
    new: Any,
    old: Any,
    labels: Ints,
) -> float | None:
    """Return the score scale of embeddings that a map takes into the old space.

    It is measured on the images of ``sample_rows``, of those that the map was fitted on: ``new`` is
    (images, new dim), ``old`` (images, dim), ``labels`` (images,). None if there is no such scale.
    """
    rows = sample_rows(len(labels))
    try:
        return score_scale(vector_map(new[rows]), old[rows], labels[rows])
    except UserError as error:
        progress.note(f"the score scale is unknown: {error}")
        return None


def sample_rows(images: int) -> Ints:
    """Draw the training images on which a model's score scale is measured, the same each time."""
    if images <= SAMPLE_IMAGES:
        return np.arange(images)
    drawn = np.random.default_rng([0, 17]).choice(images, SAMPLE_IMAGES, replace=False)
    return np.sort(drawn)


def _class_members(labels: Ints) -> list[Ints]:
    """Return the rows of each class."""
    order = np.argsort(labels, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    if len(members) < 2:
        raise NoScoreScaleError("a score scale needs images of at least two classes")
    return members


def _impostor_moments(queries: Floats, rows: Floats, members: list[Ints]) -> tuple[float, float]:
    """Return mean and variance of the scores of all pairs, except those within a class."""
    count = len(queries) ** 2 - sum(len(class_rows) ** 2 for class_rows in members)
    total, squares = _pair_sums(queries, rows)
    for class_rows in members:
        class_total, class_squares = _pair_sums(queries[class_rows], rows[class_rows])
        total, squares = total - class_total, squares - class_squares
    mean = total / count
    return mean, squares / count - mean**2


def _pair_sums(queries: Floats, rows: Floats) -> tuple[float, float]:
    """Return the sums of ⟨q, r⟩ and of its square over every query q and every row r."""
    total = float(queries.sum(axis=0) @ rows.sum(axis=0))
    if len(queries) < queries.shape[1]:
        return total, float(np.square(queries @ rows.T).sum())
    # The square of a product is a product of second moments.
    return total, float(np.vdot(queries.T @ queries, rows.T @ rows))
