"""`unibct-plus`, our own: a classifier that new and old embeddings share from the first step."""

import torch
from torch import Tensor

from unibct.losses.contrast import contrast
from unibct.methods.base import Batch, Method, OldKnowledge, Settings


class UnibctPlus(Method):
    """One classifier for new and old embeddings, and contrast with each image's old embedding.

    The compatibility loss is the mean of two losses and is active from the first step:

    - ``shared``: the new classifier must also classify the old embeddings. This puts its class
      weights where the old model puts the class, and they pull the new embeddings there. Unlike
      frozen prototypes, they can move where the old model confuses classes.
    - ``own``: each new embedding must recognise its own image's old embedding among the batch's
      old embeddings of other classes. How the old model sees single images tells where it puts
      classes that neither model was trained on.

    Both are softmax losses with the recipe's scale. The keyword arguments are for the ablation:
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
        self._old = self.old_of_images = old
        self._settings = settings
        self._shared, self._own, self._weight = shared, own, weight
        self._prototypes = None
        if prototype:
            self._prototypes = old.prototypes("centroid", settings)

    def loss(self, batch: Batch) -> Tensor:
        """Return the weighted mean of the losses that are switched on."""
        assert batch.class_weights is not None
        settings, old_embeddings = self._settings, self._old.of(batch)
        losses: list[Tensor] = []
        if self._shared:
            losses.append(batch.arcface(old_embeddings, batch.class_weights, settings))
        if self._own:
            losses.append(
                contrast(
                    batch.embeddings,
                    old_embeddings,
                    batch.labels,
                    tau=1 / settings.scale,
                    ranks=batch.ranks,
                )
            )
        if self._prototypes is not None:
            prototypes = batch.in_use(self._prototypes)
            losses.append(batch.arcface(batch.embeddings, prototypes, settings))
        return self._weight * torch.stack(losses).mean()
