"""`ract` (Zhang et al., ICLR 2022): contrast for galleries that hold rows of both models."""

from torch import Tensor

from unibct.losses.contrast import mixed_contrast
from unibct.methods.base import Batch, Method, OldKnowledge, Settings


class Ract(Method):
    """Softmax over the image's own old embedding and the batch's old and new ones of other classes.

    Args:
        old: what the old model knows of the new training set.
        settings: the recipe's numbers; none is used.
        tau: temperature, as published.
    """

    def __init__(self, old: OldKnowledge, settings: Settings, *, tau: float = 0.01) -> None:
        self._old = self.old_of_images = old
        self._tau = tau

    def loss(self, batch: Batch) -> Tensor:
        """Return the softmax cross entropy."""
        return mixed_contrast(
            batch.embeddings,
            self._old.of(batch),
            batch.labels,
            tau=self._tau,
            ranks=batch.ranks,
        )
