"""`unibct-plus`, our own: a classifier that new and old embeddings share from the first step."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.errors import UserError
from unibct.losses import contrast, unit_rows
from unibct.methods.base import Batch, Method, OldEmbeddings, Settings

_TOLERANCE = 0.25  # relative error of a distance, up to which the loss is quadratic
_SMALLEST_RADIUS = 0.2
_WARM_WEIGHT = 0.5  # from the old weights, less pull keeps the new model compatible


def cone_centre(mean: Tensor) -> tuple[Tensor, float]:
    """Return the centre ‖μ‖²·μ of the cone of old embeddings whose mean is μ, and its radius.

    ‖μ‖² is the mean cosine between two old embeddings: near 1 in a narrow cone, 0 without one.
    The radius is the root of the mean of ‖v − f·μ‖², which is 1 − 2·f·‖μ‖² + f²·‖μ‖². In a very
    narrow cone f is less than ‖μ‖², so that the radius, by which gradients are divided, is not too
    small.
    """
    square = float(mean @ mean)
    factor = square
    if _squared_radius(factor, square) < _SMALLEST_RADIUS**2:
        factor = 1 - math.sqrt(1 - (1 - _SMALLEST_RADIUS**2) / square)
    return factor * mean, math.sqrt(_squared_radius(factor, square))


def _squared_radius(factor: float, square: float) -> float:
    return 1 - 2 * factor * square + factor**2 * square


class UnibctPlus(Method):
    """One classifier for new and old embeddings, and contrast with each image's old embedding.

    Some models put everything into one narrow cone, where cosines tell little. So all embeddings
    are measured from a point towards the mean of the old ones: the mean itself if the cone is
    narrow, and zero if there is none. The compatibility loss is active from the first step, with
    half its weight if training starts from the old weights. It is the mean of two softmax losses
    with the recipe's scale, and a small third part:

    - ``shared``: the new classifier must also classify the old embeddings. This puts its class
      weights where the old model puts the class, and they pull the new embeddings there. Unlike
      frozen prototypes, they can move where the old model confuses classes.
    - ``own``: each new embedding must recognise its own image's old embedding among the batch's
      old embeddings of other classes. How the old model sees single images tells where it puts
      classes that neither model was trained on.
    - The new embeddings stay at the old ones' distance from that point, so that scores keep their
      scale. Without a cone every embedding has that distance.

    The keyword arguments are for the ablation: ``prototype`` adds the paper's loss on centroids,
    ``centre`` measures from that point instead of zero, ``weight`` multiplies the whole.
    """

    def __init__(
        self,
        old: OldEmbeddings,
        settings: Settings,
        *,
        shared: bool = True,
        own: bool = True,
        prototype: bool = False,
        centre: bool = True,
        weight: float = 1.0,
    ) -> None:
        self._old = self.old_of_images = old
        self._settings = settings
        self._shared, self._own = shared, own
        self._weight = weight * (_WARM_WEIGHT if settings.warm_start else 1)
        self._centre, self._radius = cone_centre(old.mean()) if centre else (None, 1.0)
        self._prototypes = None
        if prototype:
            self._prototypes = old.prototypes("centroid", settings)

    def classified(self, batch: Batch) -> Tensor:
        """Return the new embeddings, measured from the cone's centre."""
        if self._centre is None or batch.embeddings.shape[1] != len(self._centre):
            return batch.embeddings  # the classifier's space is not the old one
        return self._from_centre(batch.embeddings, batch)

    def loss(self, batch: Batch) -> Tensor:
        """Return the weighted mean of the losses that are switched on, and the third part."""
        settings = self._settings
        new = self._from_centre(batch.embeddings, batch)
        old = self._from_centre(self._old.of(batch), batch)
        losses: list[Tensor] = []
        if self._shared:
            if batch.class_weights is None:
                raise UserError(
                    "unibct-plus needs class_weights, those of your classifier: give them too"
                )
            losses.append(batch.arcface(old, batch.class_weights, settings))
        if self._own:
            tau = 1 / settings.scale
            losses.append(contrast(batch.labels, new=new, old=old, tau=tau, ranks=batch.ranks))
        if self._prototypes is not None:
            prototypes = self._from_centre(batch.in_use(self._prototypes), batch)
            losses.append(batch.arcface(new, prototypes, settings))
        return self._weight * (torch.stack(losses).mean() + self._distance_loss(batch) / 2)

    def _from_centre(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """Return embeddings of length 1 minus the cone's centre."""
        if self._centre is None or batch.projected:
            return embeddings
        return unit_rows(embeddings) - self._centre

    def _distance_loss(self, batch: Batch) -> Tensor:
        """Return how far the new embeddings are from the old ones' distance to the centre."""
        if self._centre is None or batch.projected:
            return batch.embeddings.new_zeros(())
        away = unit_rows(batch.embeddings) - self._centre
        distances = (away.square().sum(dim=1) + 1e-12).sqrt() / self._radius
        loss = F.smooth_l1_loss(distances, torch.ones_like(distances), beta=_TOLERANCE)
        return self._settings.scale * loss
