"""Methods of other publications, with their constants: `mixbct`, `nccl`, `lce`."""

import torch
from torch import Tensor

from unibct.distributed.device import to_device
from unibct.distributed.ranks import ClassesInUse
from unibct.errors import UserError
from unibct.losses import (
    angles,
    class_weight_gap,
    neighbour_contrast,
    outside_cone,
    unit_rows,
)
from unibct.methods.base import Batch, Method, OldEmbeddings, Settings
from unibct.prototypes.weights import drop_weights


class MixBct(Method):
    """`mixbct` (Liang et al., 2023): a share of a batch's new embeddings becomes their old ones.

    The classifier must then serve both, which moves the new embeddings to the old ones.
    Old embeddings far from their class's mean (the recipe's ``drop`` share) are never used.
    There is no other compatibility loss, so η has no effect.
    """

    replaces_embeddings = True

    def __init__(self, old: OldEmbeddings, settings: Settings, *, share: float = 0.3) -> None:
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


class Nccl(Method):
    """`nccl` (Wu et al., AAAI 2022): contrast with the old embeddings of the images seen last.

    A ``queue`` of so many images includes this batch's. Old embeddings of the same class are
    positives, all others negatives. A positive counts more the closer it is to the image's own old
    embedding: the neighbours' consensus.
    """

    def __init__(self, old: OldEmbeddings, settings: Settings, *, queue: int = 4096) -> None:
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


_ROWS = 65_536  # old embeddings that are read at a time


class Lce(Method):
    """`lce` (Meng et al., ICCV 2021): new embeddings within a cone, class weights at its axis.

    Each new embedding is kept as near to its class's old mean as the farthest old one is, and the
    class weights of the new classifier are pulled to these means. Each rank holds the means and
    largest angles of its own classes only.
    """

    def __init__(self, old: OldEmbeddings, settings: Settings) -> None:
        self._centres = old.prototypes("centroid", settings)
        self._largest = _largest_angles(old, self._centres)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean angle outside the cones plus the mean gap of the class weights."""
        if batch.class_weights is None:
            raise UserError("lce needs class_weights, those of your classifier: give them too")
        centres = batch.in_use(self._centres)
        outside = outside_cone(
            batch.embeddings,
            batch.labels,
            batch.part or ClassesInUse(len(centres)),
            centres=centres,
            largest=batch.in_use(self._largest),
        )
        # A classifier of the user's own may have more classes than the training set.
        class_weights = batch.class_weights[: len(centres)]
        return outside + class_weight_gap(class_weights, centres, ranks=batch.ranks)


def _largest_angles(old: OldEmbeddings, centres: Tensor) -> Tensor:
    """Return the largest angle between an old embedding and its class's centre: (own classes,)."""
    own_classes = old.own_classes
    rows = ((old.labels >= own_classes.start) & (old.labels < own_classes.stop)).nonzero()[:, 0]
    largest = centres.new_zeros(len(own_classes))
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        classes = old.labels[some] - own_classes.start
        vectors = unit_rows(old.rows(some)).to(centres.dtype)
        largest.scatter_reduce_(0, classes, angles(vectors, centres[classes]), "amax")
    return largest
