"""Blended queries: the old and the new embedding of a query, for a search of old rows.

Two encoders run for each query. Their errors are partly independent, so that the blend often
searches old rows better than either of them. How much of each is best differs by pair of models:
``choose_alpha`` finds it on classes that are not tested.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unibct.arrays import checked_embeddings, normalized, require_same_dim, same_kind
from unibct.data.training_classes import ALPHA_OF_QUERIES, Choice
from unibct.errors import UserError
from unibct.evaluation.criterion import Criterion, Verdict, joint_verdict
from unibct.evaluation.score_table import NormalizedRows, ProductScores
from unibct.evaluation.search_test import (
    ImageSearch,
    SearchTest,
    image_test,
    scored_test,
    search_test,
)
from unibct.evaluation.seen_classes import models_under_test
from unibct.evaluation.templates import GalleryMode, split_gallery

MIDPOINT = 0.5  # the share of the new query, unless it was chosen on other classes
ALPHAS = tuple(number / 10 for number in range(11))  # among which ``choose_alpha`` chooses

_QUERIES_AT_ONCE = 65_536


def blended(*, old: Any, new: Any, alpha: float = MIDPOINT) -> Any:
    """Return normalise((1 − α)·old + α·new), to be searched among old rows.

    Args:
        old: (queries, dim) the old model's, NumPy or torch, of any length.
        new: (queries, dim) the new model's of the same images, in the old space.
        alpha: α, the share of the new query, from 0 (old) to 1 (new).

    Returns:
        (queries, dim) of length 1, of the kind of ``new``.
    """
    require_alpha(alpha)
    old_rows = normalized(checked_embeddings(old, "old"))
    new_rows = normalized(checked_embeddings(new, "new"))
    require_same_dim(old_rows, "old", new_rows, "new")
    if len(old_rows) != len(new_rows):
        raise UserError(f"{len(old_rows)} old queries and {len(new_rows)} new queries do not match")
    mixed = (1 - alpha) * old_rows + alpha * new_rows
    return same_kind(normalized(mixed.astype(new_rows.dtype, copy=False)), new)


def require_alpha(alpha: float) -> None:
    """Refuse a number that is no share."""
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha lies in [0, 1], not {alpha}")


def blended_search(old_self: ImageSearch, cross: ImageSearch, alpha: float) -> ImageSearch:
    """Return the search of blended queries among old rows that are single images.

    Both searches are of the same rows; the queries of ``cross`` are in the old space.
    """
    queries = len(cross.query)
    parts = [slice(n, n + _QUERIES_AT_ONCE) for n in range(0, queries, _QUERIES_AT_ONCE)]
    blends = [blended(old=old_self.query[p], new=cross.query[p], alpha=alpha) for p in parts]
    return cross._replace(query=NormalizedRows(np.concatenate(blends), np.arange(queries)))


def blended_test(old_self: SearchTest, cross: SearchTest, alpha: float = MIDPOINT) -> SearchTest:
    """Search blended queries in the old gallery, of templates or of images, of both tests."""
    assert old_self.images is not None, "a test by search_test keeps its queries"
    assert cross.images is not None
    images = blended_search(old_self.images, cross.images, alpha)
    if cross.scores is None:
        return image_test(images)
    assert isinstance(cross.scores, ProductScores)
    test = scored_test(ProductScores(images.query, cross.scores.gallery), cross.query_classes)
    return replace(test, images=images)


@dataclass(frozen=True)
class AlphaChoice:
    """The share of the new query that is best on some classes."""

    alpha: float  # the share
    # what decided: α -> the mean of 1 / (1 + rank) over the queries
    mean_reciprocal_ranks: dict[float, float]
    chosen_on: Choice  # the images, as far as they are known

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        ranks = {f"{alpha:g}": mean for alpha, mean in self.mean_reciprocal_ranks.items()}
        return self.chosen_on.as_json() | {"mean_reciprocal_ranks": ranks}


def choose_alpha(
    labels: Any = None,
    *,
    old: Any,
    new: Any,
    alphas: Sequence[float] = ALPHAS,
    seed: int = 0,
    mode: GalleryMode = "templates",
    chosen_on: str | None = None,
) -> AlphaChoice:
    """Choose the share of the new query by searches of old rows, on classes kept for choosing.

    The mean reciprocal rank decides; of equals the one nearest to the midpoint is chosen.

    Args:
        labels: (images,) integers 0…C-1; by default those of ``old`` or ``new``.
        old: (images, dim) the old model's embeddings of images of classes that are not tested: an
            array, or ``Embeddings``, whose classes are kept to be compared with those of a test.
        new: (images, dim) the new model's, in the old space, likewise.
        alphas: the shares to try.
        seed: chooses the gallery's images.
        mode: the gallery's entries are ``templates``, one for each class, or ``images``.
        chosen_on: the name of the images.
    """
    if not alphas:
        raise UserError("alphas is empty: give at least one share to try")
    tried = models_under_test({"old": old, "new": new}, labels)
    split = split_gallery(tried.labels, seed=seed)
    old_self, cross = (
        search_test(tried.vectors[query], tried.vectors["old"], split, mode=mode)
        for query in ("old", "new")
    )
    means = {
        alpha: float(np.mean(1 / (1 + blended_test(old_self, cross, alpha).ranks)))
        for alpha in alphas
    }
    best = max(means, key=lambda alpha: (round(means[alpha], 12), -abs(alpha - MIDPOINT)))
    return AlphaChoice(best, means, tried.choice(ALPHA_OF_QUERIES, chosen_on))


@dataclass(frozen=True)
class BlendedQueries:
    """The gain of blended queries in the old gallery, in each metric that has an interval."""

    alpha: float  # the share of the new query
    # M(blend→old) − M(old→old): above zero, the upgrade gains by blending
    minus_old_self: tuple[Criterion, ...]
    minus_cross: tuple[Criterion, ...]  # M(blend→old) − M(new→old): the second encoder's worth
    choice: AlphaChoice | None = None  # how alpha was chosen; None if it was given

    @property
    def verdict(self) -> Verdict:
        """*Compatible* if blended queries beat old ones in every metric that decides."""
        return joint_verdict([c.verdict for c in self.minus_old_self if c.decides])

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "alpha": self.alpha,
            "chosen_on": None if self.choice is None else self.choice.as_json(),
            "verdict": self.verdict,
            "minus_old_self": _rows(self.minus_old_self),
            "minus_cross": _rows(self.minus_cross),
        }


def _rows(criteria: Iterable[Criterion]) -> list[dict[str, Any]]:
    shown = ("metric", "difference", "interval", "confidence")
    plain = [(criterion.as_json(), criterion.decides) for criterion in criteria]
    return [{name: row[name] for name in shown} | {"decides": decides} for row, decides in plain]
