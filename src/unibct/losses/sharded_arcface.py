"""ArcFace over classes that are spread over the ranks, all of them or a sample of each rank's.

Each rank holds a range of the classes and computes the logits of the whole batch for these only;
the softmax's largest value, its sum and the target's logit are put together from all ranks.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.class_shards import ClassPart
from unibct.losses.arcface import arcface, widened_cosine
from unibct.losses.unit import unit


def sharded_arcface(
    embeddings: Tensor,
    rows: Tensor,
    labels: Tensor,
    part: ClassPart,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> Tensor:
    """``arcface`` of all ranks' embeddings against the classes in use.

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
        return arcface(embeddings, rows, labels, scale=scale, margin=margin)
    everyone = part.ranks.gathered_rows(unit(embeddings))
    columns = part.columns(part.ranks.gathered(labels))
    cosine = F.linear(everyone, unit(rows))
    own = torch.nonzero(columns >= 0)[:, 0]
    target = columns[own]
    widened = widened_cosine(cosine[own, target], margin)
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
