"""ArcFace over classes that are divided among the ranks, or over a sample of them.

Each rank holds a range of the classes and computes the logits of the whole batch for these only.
The softmax's maximum and sum and the target's logit are combined from all ranks.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.class_shards import ClassPart
from unibct.losses.arcface import arcface_of_cosines, widened_cosine
from unibct.losses.unit_rows import unit_rows


def sharded_arcface(
    embeddings: Tensor,
    rows: Tensor,
    labels: Tensor,
    part: ClassPart,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
    unit_length: bool = False,
) -> Tensor:
    """Compute ``arcface`` of all ranks' embeddings over the classes in use.

    Args:
        embeddings: (batch, dim) this rank's part of the batch.
        rows: (rows in use, dim) this rank's class vectors, see ``ClassPart.rows``.
        labels: (batch,) the classes of this rank's part, numbered over all ranks.
        part: the classes that ``rows`` belong to.
        scale: s.
        margin: m, in radians.
        unit_length: whether ``unit_rows`` has been applied to ``rows`` already. For frozen class
            vectors this saves a pass over all of them in every step.

    Returns:
        The mean over the whole batch, the same on each rank.
    """
    rows = rows if unit_length else unit_rows(rows)
    if part.whole:
        cosine = F.linear(unit_rows(embeddings), rows)
        return arcface_of_cosines(cosine, labels, scale=scale, margin=margin)
    all_embeddings = part.ranks.gathered_rows(unit_rows(embeddings))
    columns = part.columns(part.ranks.gathered(labels))
    cosine = F.linear(all_embeddings, rows)
    # Every image has a target column, but only where its class is this rank's does it count: to
    # select those images would make the host wait for the device.
    is_own, targets = columns >= 0, columns.clamp_min(0)[:, None]
    target = cosine.gather(1, targets)
    target = torch.where(is_own[:, None], widened_cosine(target, margin), target)
    logits = scale * cosine.scatter(1, targets, target)
    return cast(Tensor, _CrossEntropy.apply(logits, is_own, targets, part.ranks))


class _CrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits whose columns are divided among the ranks.

    ``targets``, (batch, 1), are the target columns of the images that ``is_own`` says are this
    rank's; for other images they mean nothing.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        logits, is_own, targets, ranks = args
        largest = ranks.largest(logits.amax(dim=1))
        probability = (logits - largest[:, None]).exp_()
        target_logit = torch.where(is_own, logits.gather(1, targets)[:, 0], 0.0)
        total, target_logit = ranks.summed(torch.stack([probability.sum(dim=1), target_logit]))
        probability /= total[:, None]
        ctx.save_for_backward(probability, is_own, targets)
        return (total.log() + largest - target_logit).mean()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        probability, is_own, targets = ctx.saved_tensors
        at_target = probability.gather(1, targets) - is_own[:, None].to(probability.dtype)
        gradient = probability.scatter(1, targets, at_target)
        return gradient * (grad_outputs[0] / len(probability)), None, None, None
