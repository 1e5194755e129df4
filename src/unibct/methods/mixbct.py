"""`mixbct` (Liang et al., 2023): old embeddings mixed into the classifier's batches."""

import torch
from torch import Tensor

from unibct.distributed.device import to_device
from unibct.methods.base import Batch, Method, OldKnowledge, Settings
from unibct.prototypes.weights import drop_weights


class MixBct(Method):
    """Replaces a share of a batch's new embeddings by the old embeddings of the same images.

    The classifier must then serve both, which moves the new embeddings to the old ones.
    Old embeddings far from their class's mean (the recipe's ``drop`` share) are never used.
    There is no other compatibility loss, so η has no effect.
    """

    replaces_embeddings = True

    def __init__(self, old: OldKnowledge, settings: Settings, *, share: float = 0.3) -> None:
        self._old = self.old_of_images = old
        self._usable = drop_weights(old.whole(), old.labels, drop=settings.drop) > 0
        self._share = share

    def classified(self, batch: Batch) -> Tensor:
        """Return the embeddings after the replacement; floor(share · batch) rows are drawn."""
        size = len(batch.rows) * batch.ranks.world
        count = int(self._share * size + 1e-9)  # 0.3 · 10 must give 3
        drawn = torch.zeros(size, dtype=torch.bool)
        drawn[torch.from_numpy(batch.rng.permutation(size)[:count])] = True
        own_drawn = to_device(drawn[batch.ranks.batch_slice(size)], batch.rows.device)
        replaced = own_drawn & self._usable[batch.rows]
        return torch.where(replaced[:, None], self._old.of(batch), batch.embeddings)
