"""Which blended weights search old rows best, on images of classes that are not tested."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unibct import progress
from unibct.arrays import Floats, Ints
from unibct.data.image_set import ImageSet
from unibct.data.training_classes import ALPHA_OF_WEIGHTS, SCORE_SCALE_MEASURED, choice_on
from unibct.embeddings.extraction import embed
from unibct.embeddings.score_scale import score_scale
from unibct.errors import UserError
from unibct.evaluation.search_test import search_test
from unibct.evaluation.seen_classes import classes_with_queries, count_seen_classes
from unibct.evaluation.templates import split_gallery
from unibct.models.blended_weights import blend_weights
from unibct.models.model import Model

WEIGHT_ALPHAS = tuple(number / 10 for number in range(1, 11))


@dataclass(frozen=True)
class TriedWeights:
    """What one α is worth on the images of the choice."""

    alpha: float  # the share of the new weights
    mean_reciprocal_rank: float  # of the cross test; it decides
    cross: float  # top-1 of the cross test
    new_self: float  # top-1 of the self test


@dataclass(frozen=True)
class WeightChoice:
    """The blended weights that were chosen."""

    alpha: float  # the share of the new weights
    model: Model  # with these weights, and a score scale measured on the same images
    old_self: float  # top-1 of the old self test
    tried: tuple[TriedWeights, ...]  # all shares

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "alpha": self.alpha,
            "old_self": self.old_self,
            "tried": [vars(one) for one in self.tried],
        }


def choose_weights(
    images: ImageSet,
    *,
    old: Model,
    new: Model,
    alphas: Sequence[float] = WEIGHT_ALPHAS,
    seed: int = 0,
) -> WeightChoice:
    """Choose between the weights of an old model and of a new one that started from it.

    The mean reciprocal rank of the cross test decides; of equals the larger α, because it
    has the better self test.

    Args:
        images: like the queries that are to come, of classes that no model was trained on.
        old: the old model.
        new: trained from its weights.
        alphas: the shares of the new weights to try.
        seed: chooses the gallery's images.
    """
    shares = sorted({float(alpha) for alpha in alphas})
    if not shares:
        raise UserError("alphas is empty: give at least one share to try")
    blend_weights(old, new, shares[0])  # refuses before anything is embedded
    _require_unseen(old, new, images)
    split = split_gallery(images.labels, seed=seed)

    def embedded(model: Model) -> Floats:
        return np.asarray(embed(model, images).vectors)

    old_rows = embedded(old)
    rows: dict[float, Floats] = {}
    tried: dict[float, TriedWeights] = {}
    for alpha in shares:
        rows[alpha] = embedded(blend_weights(old, new, alpha))
        cross = search_test(rows[alpha], old_rows, split)
        rank = float(np.mean(1 / (1 + cross.ranks)))
        new_self = search_test(rows[alpha], rows[alpha], split)
        tried[alpha] = TriedWeights(alpha, rank, cross.top(1), new_self.top(1))
    best = max(tried, key=lambda alpha: (round(tried[alpha].mean_reciprocal_rank, 12), alpha))
    scale = _scale(rows[best], old_rows, images.labels)
    old_self = search_test(old_rows, old_rows, split).top(1)
    choice = choice_on(ALPHA_OF_WEIGHTS, images).with_vectors(old_rows)
    chosen = blend_weights(old, new, best).with_choice(choice)
    chosen = chosen.with_score_scale(
        scale, f"{images.name}, which chose the weights", replace(choice, what=SCORE_SCALE_MEASURED)
    )
    return WeightChoice(best, chosen, old_self, tuple(tried.values()))


def _require_unseen(old: Model, new: Model, images: ImageSet) -> None:
    """Refuse a choice on classes that are mostly training classes; note if some are, or may be."""
    trained = {"old": old.training_classes, "new": new.training_classes}
    asking = classes_with_queries(images)
    seen = count_seen_classes(asking, images.class_source, trained)
    if seen.unknown is not None:
        progress.note(
            f"whether a model was trained on more classes of {images.name} than are counted is "
            f"unknown: {seen.unknown}; if so, that may change the choice"
        )
    if not seen.count:
        return
    counted = (
        f"{seen.count} of the {len(asking)} classes of {images.name} that have queries were in a "
        "model's training set"
    )
    if 2 * seen.count > len(asking):
        raise UserError(f"{counted}; choose the share on classes that no model was trained on")
    progress.note(f"{counted}, which may change the choice: better leave them out (--images)")


def _scale(new: Floats, old: Floats, labels: Ints) -> float | None:
    """Return the score scale on the images of the choice; None, with a note, if there is none."""
    try:
        return score_scale(new, old, labels)
    except UserError as error:
        progress.note(f"the score scale is unknown: {error}")
        return None
