"""ArcFace over classes that are divided among the ranks, or over a sample of them.

Each rank holds a range of the classes and computes the logits of the whole batch for these only.
The softmax's maximum and sum and the target's logit are combined from all ranks.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.class_shards import ClassPart
from unibct.losses.arcface import arcface, widened_cosine
from unibct.losses.unit_rows import unit_rows


def sharded_arcface(
    embeddings: Tensor,
    rows: Tensor,
    labels: Tensor,
    part: ClassPart,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> Tensor:
    """Compute ``arcface`` of all ranks' embeddings over the classes in use.

    Args:
        embeddings: (batch, dim) this rank's part of the batch.
        rows: (rows in use, dim) this rank's class vectors, see ``ClassPart.rows``.
        labels: (batch,) the classes of this rank's part, numbered over all ranks.
        part: the classes that ``rows`` belong to.
        scale: s.
        margin: m, in radians.

    Returns:
        The mean over the whole batch, the same on each rank.
    """
    if part.whole:
        return arcface(embeddings, rows, labels, scale=scale, margin=margin)
    all_embeddings = part.ranks.gathered_rows(unit_rows(embeddings))
    columns = part.columns(part.ranks.gathered(labels))
    cosine = F.linear(all_embeddings, unit_rows(rows))
    images = torch.nonzero(columns >= 0)[:, 0]  # whose class is among this rank's
    targets = columns[images]
    widened = widened_cosine(cosine[images, targets], margin)
    logits = scale * cosine.index_put((images, targets), widened)
    return cast(Tensor, _CrossEntropy.apply(logits, images, targets, part.ranks))


class _CrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits whose columns are divided among the ranks.

    Each rank has the target column of some images: ``targets`` of the rows ``images``.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        logits, images, targets, ranks = args
        largest = ranks.largest(logits.amax(dim=1))
        probability = (logits - largest[:, None]).exp_()
        target_logit = torch.zeros_like(largest)
        target_logit[images] = logits[images, targets]
        total, target_logit = ranks.summed(torch.stack([probability.sum(dim=1), target_logit]))
        probability /= total[:, None]
        ctx.save_for_backward(probability, images, targets)
        return (total.log() + largest - target_logit).mean()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        probability, images, targets = ctx.saved_tensors
        gradient = probability.clone()
        gradient[images, targets] -= 1
        return gradient * (grad_outputs[0] / len(probability)), None, None, None
