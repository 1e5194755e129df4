"""`unibct-plus`, our own: a classifier that new and old embeddings share from the first step."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.losses.contrast import contrast
from unibct.losses.unit_rows import unit_rows
from unibct.methods.base import Batch, Method, OldKnowledge, Settings

_TOLERANCE = 0.25  # relative error of a distance, up to which the loss is quadratic
_NARROWEST = 1e-4  # a narrower cone of old embeddings is rounding


class UnibctPlus(Method):
    """One classifier for new and old embeddings, and contrast with each image's old embedding.

    All embeddings are measured from the mean of the old ones: many models put everything into one
    narrow cone, where cosines tell little. The compatibility loss is active from the first step.
    It is the mean of two softmax losses with the recipe's scale, and a small third part:

    - ``shared``: the new classifier must also classify the old embeddings. This puts its class
      weights where the old model puts the class, and they pull the new embeddings there. Unlike
      frozen prototypes, they can move where the old model confuses classes.
    - ``own``: each new embedding must recognise its own image's old embedding among the batch's
      old embeddings of other classes. How the old model sees single images tells where it puts
      classes that neither model was trained on.
    - The new embeddings stay at the old ones' distance from their mean, so that scores keep their
      scale. Without a cone this part is next to nothing.

    The keyword arguments are for the ablation: ``prototype`` adds the paper's loss on centroids,
    ``centre`` measures from the mean, ``weight`` multiplies the whole.
    """

    def __init__(
        self,
        old: OldKnowledge,
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
        self._shared, self._own, self._weight = shared, own, weight
        self._mean = old.mean() if centre else None
        if self._mean is not None:
            square = 1 - float(self._mean @ self._mean)
            self._usual_distance = math.sqrt(max(square, _NARROWEST))
        self._prototypes = None
        if prototype:
            self._prototypes = old.prototypes("centroid", settings)

    def classified(self, batch: Batch) -> Tensor:
        """Return the new embeddings, measured from the old mean."""
        if self._mean is None or batch.embeddings.shape[1] != len(self._mean):
            return batch.embeddings  # the classifier's space is not the old one
        return self._from_mean(batch.embeddings, batch)

    def loss(self, batch: Batch) -> Tensor:
        """Return the weighted mean of the losses that are switched on, and the third part."""
        assert batch.class_weights is not None
        settings = self._settings
        new = self._from_mean(batch.embeddings, batch)
        old = self._from_mean(self._old.of(batch), batch)
        losses: list[Tensor] = []
        if self._shared:
            losses.append(batch.arcface(old, batch.class_weights, settings))
        if self._own:
            tau = 1 / settings.scale
            losses.append(contrast(new, old, batch.labels, tau=tau, ranks=batch.ranks))
        if self._prototypes is not None:
            prototypes = self._from_mean(batch.in_use(self._prototypes), batch)
            losses.append(batch.arcface(new, prototypes, settings))
        return self._weight * (torch.stack(losses).mean() + self._distance_loss(batch) / 2)

    def _from_mean(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """Return embeddings of length 1 minus the old mean."""
        if self._mean is None or batch.projected:
            return embeddings
        return unit_rows(embeddings) - self._mean

    def _distance_loss(self, batch: Batch) -> Tensor:
        """Return how far the new embeddings are from the old ones' distance to the mean μ.

        The mean of ‖v − μ‖² is 1 − ‖μ‖². Far away the loss grows linearly.
        """
        if self._mean is None or batch.projected:
            return batch.embeddings.new_zeros(())
        away = unit_rows(batch.embeddings) - self._mean
        distances = (away.square().sum(dim=1) + 1e-12).sqrt() / self._usual_distance
        loss = F.smooth_l1_loss(distances, torch.ones_like(distances), beta=_TOLERANCE)
        return self._settings.scale * loss
