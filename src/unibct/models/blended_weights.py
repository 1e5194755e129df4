"""Blended weights: one network between the old model and a new one that started from it.

Training from the old weights leaves a straight way back to them. A network on this way, with the
weights (1 − α)·old + α·new, has something of both: it searches old rows with one encoder, where
blended queries need two. It suits queries that are unlike the images of the new training. After
WiSE-FT (Wortsman et al., CVPR 2022).
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from unibct.data.training_classes import SCORE_SCALE_MEASURED
from unibct.errors import UserError
from unibct.models.architectures.growth import grown_state
from unibct.models.model import Model
from unibct.models.old_space import without_projection

BLENDED_WEIGHTS = "blended_weights"  # in ``Model.training``


def blend_weights(old: Model, new: Model, alpha: float) -> Model:
    """Return a model with the weights (1 − α)·old + α·new. Neither model changes.

    Args:
        old: the old model.
        new: a model that was trained from its weights, as `unibct train --old` does by default
            if the networks are of the same family.
        alpha: α, from 0 (embeds as the old model) to 1 (as the new one).

    Returns:
        The model. Its score scale is unknown, unless α is 1.
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha lies in [0, 1], not {alpha}")
    start = _starting_weights(old, new)
    network = copy.deepcopy(new.network)
    between = {  # what is no weight, such as a count of batches, stays the new model's
        name: torch.lerp(start[name].to(end), end, alpha) if end.is_floating_point() else end
        for name, end in network.state_dict().items()
    }
    network.load_state_dict(between)
    further = new.further_classes | old.training_classes.without(SCORE_SCALE_MEASURED)
    blended = replace(new, network=network, further_classes=further)
    if alpha == 1:
        return blended
    record = {"alpha": alpha, "old": old.fingerprint, "new": new.fingerprint}
    blended = blended.with_score_scale(None)
    return replace(blended, training=blended.training | {BLENDED_WEIGHTS: record})


def _starting_weights(old: Model, new: Model) -> dict[str, Tensor]:
    """Return the weights from which the new model was trained, or refuse models without a way."""
    if new.old_fingerprint != old.fingerprint:
        if old.old_fingerprint == new.fingerprint:
            raise UserError("the models are the other way round: the old one comes first")
        raise UserError(
            f"the new model was not trained with this old model ({old.fingerprint}), but "
            + (f"with {new.old_fingerprint}" if new.old_fingerprint else "without one")
        )
    if BLENDED_WEIGHTS in new.training:
        raise UserError("the new model has blended weights already; give the one it was made from")
    if not started_from(old, new):
        raise UserError(
            "the new model was not trained from the old weights, so nothing good lies between "
            "them: train it with the method unibct-plus and the old network or a larger one of its "
            "family, or blend queries instead"
        )
    if old.input != new.input:
        raise UserError(
            "the two models take other images (size, channels, fit, mean or deviation), so a "
            "network between them fits neither: train the new one without these settings"
        )
    weights = without_projection(old.network.state_dict())
    if new.architecture != old.architecture:
        weights = grown_state(weights, new.network, seed=int(new.training["recipe"]["seed"]))
    return weights


def started_from(old: Model, new: Model) -> bool:
    """Return whether a model was trained from the weights of another."""
    recipe = new.training.get("recipe", {})
    is_same = new.old_fingerprint == old.fingerprint
    return is_same and new.vector_map is None and bool(recipe.get("warm_start"))
