"""Ours: `unibct-plus`, a classifier that new and old embeddings share from the first step on."""

import torch
from torch import Tensor

from unibct.losses.contrast import contrast
from unibct.methods.base import Batch, Method, OldKnowledge, Settings


class UnibctPlus(Method):
    """New and old embeddings share one classifier, and each image its place; no warm-up.

    Two losses, whose mean η multiplies, from the first step on:

    - ``shared``: the new classifier must classify the old embeddings too. Its class weights then
      lie where the old model puts their class, and draw the new embeddings there. Unlike frozen
      prototypes they give way where the old model confuses classes.
    - ``own``: each new embedding must find its own image's old embedding among the old ones of
      the batch's other classes. How the old model sees single images tells where it will put
      classes that nobody has trained on.

    Both are softmax losses with the recipe's scale. The switches are for the ablation:
    ``prototype`` adds the paper's loss on centroids, ``weight`` multiplies the mean.
    """

    def __init__(
        self,
        old: OldKnowledge,
        settings: Settings,
        *,
        shared: bool = True,
        own: bool = True,
        prototype: bool = False,
        weight: float = 1.0,
    ) -> None:
        self._old = old
        self._settings = settings
        self._shared, self._own, self._weight = shared, own, weight
        self._prototypes = None
        if prototype:
            self._prototypes = old.prototypes("centroid", settings)

    def loss(self, batch: Batch) -> Tensor:
        """The mean of the losses."""
        assert batch.class_weights is not None
        settings, old = self._settings, self._old.of(batch)
        parts: list[Tensor] = []
        if self._shared:
            parts.append(batch.arcface(old, batch.class_weights, settings))
        if self._own:
            tau = 1 / settings.scale
            parts.append(contrast(batch.embeddings, old, batch.labels, tau=tau, ranks=batch.ranks))
        if self._prototypes is not None:
            vectors = batch.in_use(self._prototypes)
            parts.append(batch.arcface(batch.embeddings, vectors, settings))
        return self._weight * torch.stack(parts).mean()
