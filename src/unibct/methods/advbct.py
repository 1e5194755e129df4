"""`advbct` (Pan et al., CVPR 2023): an old/new discriminator to deceive, and elastic radii."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unibct.distributed.device import callers_generators_kept, seed_generators
from unibct.distributed.gradients import synced
from unibct.errors import UserError
from unibct.losses import point_to_set
from unibct.methods.base import Batch, Method, OldEmbeddings, Settings
from unibct.prototypes.class_prototypes import class_prototypes


class AdvBct(Method):
    """New embeddings that cannot be told from old ones, each near its class's old mean.

    A discriminator learns to tell old embeddings from new ones. Through a reversed gradient, the
    network learns to prevent it. A point-to-set loss pulls each new embedding into a ball around
    its class's old mean. The ball's radius is between the class's own (the distance of its
    farthest old embedding) and the mean over all classes; the position between the two is learnt
    for each class.
    """

    def __init__(self, old: OldEmbeddings, settings: Settings) -> None:
        self._old = self.old_of_images = old
        embeddings = old.whole()
        self._centres, self._radius = self._balls(embeddings)
        with callers_generators_kept():
            seed_generators(0)
            discriminator, place = self._untrained(embeddings.shape[1], len(self._centres))
        self._discriminator = discriminator.to(embeddings.device)
        self._place = nn.Parameter(place.to(self._radius))

    def _balls(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Return each class's centre (classes, dim) and its own radius (classes,)."""
        labels = self._old.labels
        centres = class_prototypes(labels, old=embeddings, kind="centroid")
        distance = (F.normalize(embeddings, dim=1) - centres[labels]).norm(dim=1)
        zeros = distance.new_zeros(len(centres))
        return centres, zeros.scatter_reduce(0, labels, distance, "amax")

    def _untrained(self, dim: int, classes: int) -> tuple[nn.Module, Tensor]:
        """Return the discriminator, and where the radii begin: (classes,) before the sigmoid."""
        discriminator = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))
        return discriminator, torch.zeros(classes)

    def parameters(self) -> list[nn.Parameter]:
        """Return the discriminator's weights and each radius's place between its two ends."""
        return [*self._discriminator.parameters(), self._place]

    def loss(self, batch: Batch) -> Tensor:
        """Return the discriminator's loss, with reversed gradients, plus the point-to-set loss."""
        new = F.normalize(batch.embeddings, dim=1)
        strength = 2 / (1 + math.exp(-10 * batch.progress)) - 1  # as in Ganin and Lempitsky, 2015
        told_apart = self._told_apart(reversed_gradient(new, strength), self._old.of(batch))
        return told_apart * self._weight(batch) + self._outside(new, batch)

    def _told_apart(self, new: Tensor, old: Tensor) -> Tensor:
        """Return the discriminator's loss."""
        judged = torch.cat([new, old])
        is_old = torch.arange(len(judged), device=judged.device) >= len(new)
        logits = self._discriminator(judged)[:, 0]
        return F.binary_cross_entropy_with_logits(logits, is_old.to(logits.dtype))

    def _weight(self, batch: Batch) -> float:
        """Return the weight of the discriminator's loss."""
        return 1.0

    def _outside(self, new: Tensor, batch: Batch) -> Tensor:
        """Return the point-to-set loss."""
        radius = torch.lerp(self._radius, self._radius.mean(), torch.sigmoid(self._place))
        centres, radii = self._centres[batch.labels], radius[batch.labels]
        return point_to_set(new, centres, radii, ranks=batch.ranks)

    def state(self) -> dict[str, Tensor]:
        """Return everything that is learnt."""
        weights = self._discriminator.state_dict()
        return {f"discriminator.{k}": v for k, v in weights.items()} | {"place": self._place.data}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue with the weights of a checkpoint. An empty state changes nothing."""
        if state:
            names = self._discriminator.state_dict()
            self._discriminator.load_state_dict({k: state[f"discriminator.{k}"] for k in names})
            self._place.data.copy_(state["place"])


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        vectors, ctx.strength = args
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return -ctx.strength * grad_outputs[0], None


def reversed_gradient(vectors: Tensor, strength: float) -> Tensor:
    """Return the same vectors; their gradient is multiplied by −strength."""
    return cast(Tensor, _Reversed.apply(vectors, strength))


# `advbct@released=true` has the constants of its authors' program (github.com/Ashespt/AdvBCT);
# docs/methods.md lists them. The class above is our reading of the paper.

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
                "advbct@released=true normalises over the batch, which has one image only: leave a "
                "last batch of one image out"
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


def advbct(old: OldEmbeddings, settings: Settings, *, released: bool = False) -> AdvBct:
    """Make `advbct`; ``released`` is for the constants of its authors' program."""
    return (ReleasedAdvBct if released else AdvBct)(old, settings)


def _largest_without_outliers(distance: Tensor, labels: Tensor) -> Tensor:
    """Return each class's largest distance (classes,) below Q3 + 1.5·(Q3 − Q1).

    ``distance`` (images,) is from the class's centre, and each of the labels 0…C-1 is in use.
    """
    sizes = torch.bincount(labels)
    by_distance = torch.argsort(distance, stable=True)
    order = by_distance[torch.argsort(labels[by_distance], stable=True)]
    ranked, first = distance[order], torch.cumsum(sizes, 0) - sizes
    low, high = ranked[first + sizes // 4], ranked[first + 3 * sizes // 4]
    limit = (high + 1.5 * (high - low)).masked_fill(sizes < _FEWEST_TO_DROP, torch.inf)
    without_outliers = torch.where(distance <= limit[labels], distance, 0.0)
    return torch.zeros_like(limit).scatter_reduce(0, labels, without_outliers, "amax")
