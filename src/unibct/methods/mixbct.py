"""MixBCT (Liang et al., 2023): one classifier for new and old embeddings, mixed in each batch."""

import torch
from torch import Tensor

from unibct.methods.base import Batch, Method, OldKnowledge, Settings
from unibct.prototypes.weights import drop_weights


class MixBct(Method):
    """A share of a batch's new embeddings is replaced by the same images' old ones.

    The classifier must then serve both, and the new embeddings come to where the old ones are.
    Old embeddings far from their class's mean (the recipe's ``drop`` share) are never mixed in.
    There is no other compatibility loss, so η does nothing.
    """

    def __init__(self, old: OldKnowledge, settings: Settings, *, share: float = 0.3) -> None:
        self._old = old
        self._usable = drop_weights(old.whole(), old.labels, drop=settings.drop) > 0
        self._share = share

    def classified(self, batch: Batch) -> Tensor:
        """New embeddings, some of them replaced; floor(share · batch) rows are drawn."""
        size = len(batch.rows) * batch.ranks.world
        drawn = torch.zeros(size, dtype=torch.bool)
        drawn[torch.from_numpy(batch.rng.permutation(size)[: int(self._share * size + 1e-9)])] = (
            True
        )
        own = drawn[batch.ranks.batch_slice(size)]
        replaced = own.to(batch.rows.device) & self._usable[batch.rows]
        return torch.where(replaced[:, None], self._old.of(batch), batch.embeddings)
