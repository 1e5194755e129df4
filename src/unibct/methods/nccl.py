"""NCCL (Wu et al., AAAI 2022): supervised contrast of new embeddings with a queue of old ones."""

import torch
from torch import Tensor

from unibct.losses.contrast import neighbour_contrast
from unibct.methods.base import Batch, Method, OldKnowledge, Settings


class Nccl(Method):
    """Every old embedding of the same class in the queue is a positive, all others are negatives.

    The queue holds the old embeddings of the last images seen, this batch's among them. A positive
    counts by how close it lies to the image's own old embedding: the neighbours' consensus.
    """

    def __init__(self, old: OldKnowledge, settings: Settings, *, queue: int = 4096) -> None:
        self._old = old
        self._tau = settings.tau
        self._length = queue
        self._queue = torch.empty(0, dtype=torch.int64, device=old.labels.device)

    def loss(self, batch: Batch) -> Tensor:
        """Queue this batch, then contrast it with the queue."""
        self._queue = torch.cat([self._queue, batch.ranks.gathered(batch.rows)])[-self._length :]
        return neighbour_contrast(
            batch.embeddings,
            batch.labels,
            own=self._old.of(batch),
            others=self._old.rows(self._queue),
            other_labels=self._old.labels[self._queue],
            tau=self._tau,
            ranks=batch.ranks,
        )

    def state(self) -> dict[str, Tensor]:
        """The rows in the queue."""
        return {"queue": self._queue}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on with the same queue."""
        self._queue = state.get("queue", self._queue)
