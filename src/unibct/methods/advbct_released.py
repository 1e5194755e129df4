"""`advbct-released`: AdvBCT with the constants of its authors' program, beside our reading of it.

The constants are facts from that program (github.com/Ashespt/AdvBCT); docs/methods.md lists them.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unibct.distributed.batch_norm import synced
from unibct.errors import UserError
from unibct.losses.point_to_set import point_to_set
from unibct.methods.advbct import AdvBct
from unibct.methods.base import Batch

_WIDTH = 100  # of the discriminator's hidden layer
_OTHER_END = 1.0  # of each radius, whatever the classes' own radii are
_FEWEST_TO_DROP = 4  # images of a class from which on outliers are dropped


class ReleasedAdvBct(AdvBct):
    """AdvBCT with a normalising discriminator, raw class means and radii that go towards 1.

    - The discriminator normalises its hidden layer over the batch, old and new embeddings apart.
      Its loss is the sum of the two cross entropies; the weight falls to 0 during training.
    - The centre of a class is the mean as it is, not scaled to length 1.
    - A class's own radius leaves outliers out, and it moves towards 1. A class with one image has
      no ball.
    """

    def _balls(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Return each class's raw mean and its own radius; infinite for a single image."""
        # On the host, because sums on a GPU differ in their last digits from run to run.
        labels, vectors = self._old.labels.cpu(), F.normalize(embeddings.cpu(), dim=1)
        sizes = torch.bincount(labels)
        sums = vectors.new_zeros(len(sizes), vectors.shape[1]).index_add_(0, labels, vectors)
        centres = sums / sizes[:, None]
        distance = cast(Tensor, torch.linalg.vector_norm(vectors - centres[labels], dim=1))
        radius = _largest_without_outliers(distance, labels)
        radius = radius.masked_fill(sizes == 1, torch.inf)
        return centres.to(embeddings.device), radius.to(embeddings.device)

    def _untrained(self, dim: int, classes: int) -> tuple[nn.Module, Tensor]:
        """Return the discriminator, and places from −1 to 1."""
        layers = [nn.Linear(dim, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 2)]
        return synced(nn.Sequential(*layers), self._old.ranks), torch.empty(classes).uniform_(-1, 1)

    def _told_apart(self, new: Tensor, old: Tensor) -> Tensor:
        """Return the cross entropy of new embeddings (output 0) plus that of old ones (1)."""
        if len(new) * self._old.ranks.world == 1:
            raise UserError(
                "advbct-released normalises over the batch, which has one image only: leave a last "
                "batch of one image out"
            )
        judged = [self._discriminator(vectors).log_softmax(dim=1) for vectors in (new, old)]
        return -judged[0][:, 0].mean() - judged[1][:, 1].mean()

    def _weight(self, batch: Batch) -> float:
        """Fall from 1 to 0 during training."""
        return 1 - batch.progress

    def _outside(self, new: Tensor, batch: Batch) -> Tensor:
        """Return the point-to-set loss around raw means."""
        own_radii = self._radius[batch.labels]
        share = torch.sigmoid(self._place)[batch.labels]
        # An infinite radius stays infinite: nothing is added to it.
        radii = own_radii + share * (_OTHER_END - own_radii).nan_to_num(neginf=0.0)
        centres = self._centres[batch.labels]
        return point_to_set(new, centres, radii, ranks=batch.ranks, unit_centres=False)


def _largest_without_outliers(distance: Tensor, labels: Tensor) -> Tensor:
    """Return each class's largest distance (classes,) below Q3 + 1.5·(Q3 − Q1).

    Args:
        distance: (images,) from the class's centre.
        labels: (images,) 0…C-1, each of them in use.
    """
    sizes = torch.bincount(labels)
    by_distance = torch.argsort(distance, stable=True)
    order = by_distance[torch.argsort(labels[by_distance], stable=True)]
    ranked, first = distance[order], torch.cumsum(sizes, 0) - sizes
    low, high = ranked[first + sizes // 4], ranked[first + 3 * sizes // 4]
    limit = (high + 1.5 * (high - low)).masked_fill(sizes < _FEWEST_TO_DROP, torch.inf)
    without_outliers = torch.where(distance <= limit[labels], distance, 0.0)
    return torch.zeros_like(limit).scatter_reduce(0, labels, without_outliers, "amax")
