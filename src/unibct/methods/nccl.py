"""`nccl` (Wu et al., AAAI 2022): supervised contrast of new embeddings with a queue of old ones."""

import torch
from torch import Tensor

from unibct.distributed.device import to_device
from unibct.losses.contrast import neighbour_contrast
from unibct.methods.base import Batch, Method, OldKnowledge, Settings


class Nccl(Method):
    """Contrast with the old embeddings of the images seen last, including this batch's.

    Old embeddings of the same class are positives, all others negatives. A positive counts more
    the closer it is to the image's own old embedding: the neighbours' consensus.

    Args:
        old: what the old model knows of the new training set.
        settings: the recipe's numbers.
        queue: how many old embeddings the queue holds.
    """

    def __init__(self, old: OldKnowledge, settings: Settings, *, queue: int = 4096) -> None:
        self._old = self.old_of_images = old
        self._tau = settings.tau
        self._queue_length = queue
        # Rows of the training set; their old embeddings are looked up when needed. They are kept
        # on the host, because it reads embeddings that are on disk.
        self._queue = torch.empty(0, dtype=torch.int64)

    def loss(self, batch: Batch) -> Tensor:
        """Add this batch to the queue, then contrast it with the queue."""
        seen = torch.cat([self._queue, batch.rows_of_all_ranks()])
        self._queue = seen[-self._queue_length :]
        return neighbour_contrast(
            batch.embeddings,
            batch.labels,
            own_old=self._old.of(batch),
            others=self._old.rows(self._queue),
            other_labels=self._old.labels[to_device(self._queue, self._old.labels.device)],
            tau=self._tau,
            ranks=batch.ranks,
        )

    def to(self, device: torch.device) -> None:
        """Move everything but the queue."""
        queue = self._queue
        super().to(device)
        self._queue = queue

    def state(self) -> dict[str, Tensor]:
        """Return the rows in the queue."""
        return {"queue": self._queue}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue with the queue of a checkpoint."""
        self._queue = state.get("queue", self._queue).cpu()
