"""`regress` (AML): pull each new embedding to the old embedding of the same image."""

from torch import Tensor

from unibct.losses.regress import regress
from unibct.methods.base import Batch, Method, OldKnowledge, Settings


class Regress(Method):
    """Squared distance between the new and the old embedding of each image."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        self._old = self.old_of_images = old

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean squared distance."""
        return regress(batch.embeddings, self._old.of(batch))
