"""`contrast`: recognise each image's own old embedding among those of other classes."""

from torch import Tensor

from unibct.losses.contrast import contrast
from unibct.methods.base import Batch, Method, OldKnowledge, Settings


class Contrast(Method):
    """Softmax over the image's own old embedding and the batch's old ones of other classes."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        self._old = self.old_of_images = old
        self._tau = settings.tau

    def loss(self, batch: Batch) -> Tensor:
        """Return the softmax cross entropy."""
        return contrast(
            batch.embeddings,
            self._old.of(batch),
            batch.labels,
            tau=self._tau,
            ranks=batch.ranks,
        )
