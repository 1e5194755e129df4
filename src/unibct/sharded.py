"""ArcFace over classes that are spread over the ranks, all of them or a sample (Partial FC).

Each rank holds a range of the classes and computes the logits of the whole batch for these only;
the softmax's largest value, its sum and the target's logit are put together from all ranks. With
a sample, a rank looks at the classes of the batch and at random others of its range (An et al.,
2022), so that cost and memory fall with the share.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from unibct import losses
from unibct.errors import UserError
from unibct.ranks import ALONE, Ranks


@dataclass(frozen=True)
class ClassPart:
    """Which classes this rank looks at in a step.

    Attributes:
        classes: how many there are in all.
        ranks: over which they are spread.
        sampled: (rows,) ascending rows of this rank's range; None: all of them.
    """

    classes: int
    ranks: Ranks = ALONE
    sampled: Tensor | None = None

    @property
    def range(self) -> range:
        """The classes of this rank."""
        return self.ranks.share(self.classes)

    @property
    def whole(self) -> bool:
        """Whether this rank looks at every class."""
        return self.ranks.world == 1 and self.sampled is None

    def rows(self, own: Tensor) -> Tensor:
        """(rows in use, dim) of the (own classes, dim) that this rank holds."""
        return own if self.sampled is None else own[self.sampled]

    def columns(self, labels: Tensor) -> Tensor:
        """The place of each label among the rows in use; −1 for other ranks' classes."""
        place = labels - self.range.start
        own = (place >= 0) & (place < len(self.range))
        if self.sampled is not None:
            place = torch.searchsorted(self.sampled, place.clamp(0, len(self.range) - 1))
        return torch.where(own, place, -1)


def arcface(
    embeddings: Tensor,
    rows: Tensor,
    labels: Tensor,
    part: ClassPart,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> Tensor:
    """``losses.arcface`` of all ranks' embeddings against the classes in use.

    Args:
        embeddings: (batch, dim) this rank's part of the batch.
        rows: (rows in use, dim) this rank's class vectors, see ``ClassPart.rows``.
        labels: (batch,) classes of this rank's part, counted over all classes.
        part: which classes these rows are.
        scale: s.
        margin: m, in radians.

    Returns:
        The mean over the whole batch, the same on each rank.
    """
    if part.whole:
        return losses.arcface(embeddings, rows, labels, scale=scale, margin=margin)
    everyone = part.ranks.gathered_rows(losses.unit(embeddings))
    columns = part.columns(part.ranks.gathered(labels))
    cosine = F.linear(everyone, losses.unit(rows))
    own = torch.nonzero(columns >= 0)[:, 0]
    target = columns[own]
    widened = losses.widened_cosine(cosine[own, target], margin)
    logits = scale * cosine.index_put((own, target), widened)
    return cast(Tensor, _CrossEntropy.apply(logits, own, target, part.ranks))


class _CrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits whose columns are spread over the ranks."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        logits, own, target, ranks = args
        largest = ranks.largest(logits.amax(dim=1))
        share = (logits - largest[:, None]).exp_()
        chosen = torch.zeros_like(largest)
        chosen[own] = logits[own, target]
        total, chosen = ranks.summed(torch.stack([share.sum(dim=1), chosen]))
        share /= total[:, None]
        ctx.save_for_backward(share, own, target)
        return (total.log() + largest - chosen).mean()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        share, own, target = ctx.saved_tensors
        gradient = share.clone()
        gradient[own, target] -= 1
        return gradient * (grad_outputs[0] / len(share)), None, None, None


def sampled_classes(
    labels: NDArray[np.int64], own: range, rate: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of ``own`` to look at: those of the labels, and random others up to ``rate`` of it.

    Args:
        labels: the classes of the whole batch.
        own: this rank's range of classes.
        rate: share of the range; more if the labels alone are more.
        rng: where the others are drawn from.

    Returns:
        Ascending rows, counted from the beginning of ``own``.
    """
    if not 0 < rate <= 1:
        raise UserError(f"sample_rate must lie in (0, 1], not {rate}")
    present = np.unique(labels[(labels >= own.start) & (labels < own.stop)]) - own.start
    others = max(round(rate * len(own)), 1) - len(present)
    draw = rng.random(len(own), dtype=np.float32)
    if others <= 0:
        return present
    draw[present] = 2.0  # never among the smallest
    negatives = np.argpartition(draw, others - 1)[:others]
    return np.sort(np.concatenate([present, negatives]))


def step_rows(
    weights: Tensor,
    momentum_buffer: Tensor,
    rows: Tensor,
    gradient: Tensor,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """A step of SGD on some rows; the others, and their momentum, stay as they are."""
    kept = weights[rows]
    velocity = momentum * momentum_buffer[rows] + gradient + weight_decay * kept
    momentum_buffer[rows] = velocity
    weights[rows] = kept - lr * velocity
