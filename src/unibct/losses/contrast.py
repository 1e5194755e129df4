"""Softmax losses that contrast new embeddings with old ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.losses.mean_over_ranks import mean_over_ranks
from unibct.losses.sum_over_ranks import sum_over_ranks
from unibct.losses.unit_rows import unit_rows


def contrast(
    new: Tensor, old: Tensor, labels: Tensor, *, tau: float = 0.05, ranks: Ranks = ALONE
) -> Tensor:
    """Contrast each image's own old embedding with the old embeddings of other classes.

    Paper, equation 12: a softmax cross entropy. Other images of the same class are left out of the
    sum.

    Args:
        new: (batch, dim) with gradients.
        old: (batch, dim) of the same images. Those of all ranks are gathered for the contrast.
        labels: (batch,) integers.
        tau: temperature.
        ranks: the ranks that share the batch.

    Returns:
        The mean over this rank's images, a scalar.
    """
    all_labels = ranks.gathered(labels)
    logits = unit_rows(new) @ ranks.gathered(unit_rows(old)).T / tau
    columns = torch.arange(len(all_labels), device=logits.device)
    own_columns = columns[ranks.batch_slice(len(all_labels))]
    left_out = labels[:, None] == all_labels[None, :]
    left_out[torch.arange(len(labels), device=logits.device), own_columns] = False
    return F.cross_entropy(logits.masked_fill(left_out, -torch.inf), own_columns)


def mixed_contrast(
    new: Tensor, old: Tensor, labels: Tensor, *, tau: float = 0.01, ranks: Ranks = ALONE
) -> Tensor:
    """Contrast each image's own old embedding with old *and new* embeddings of other classes.

    For galleries with rows of both models: ``contrast`` does not compare the own old embedding
    with new embeddings of other classes, which may then be nearer (RACT).

    Args:
        new: (batch, dim) with gradients, as queries and as negatives.
        old: (batch, dim) of the same images. All ranks' embeddings are gathered for the contrast.
        labels: (batch,) integers.
        tau: temperature.
        ranks: the ranks that share the batch.

    Returns:
        The mean over the whole batch, the same on each rank.
    """
    all_labels = ranks.gathered(labels)
    all_new = ranks.gathered_rows(unit_rows(new))
    batch_slice = ranks.batch_slice(len(all_labels))
    logits = all_new[batch_slice] @ torch.cat([ranks.gathered(unit_rows(old)), all_new]).T / tau
    own_columns = torch.arange(len(all_labels), device=logits.device)[batch_slice]
    left_out = (labels[:, None] == all_labels[None, :]).repeat(1, 2)
    left_out[torch.arange(len(labels), device=logits.device), own_columns] = False
    masked = logits.masked_fill(left_out, -torch.inf)
    total = F.cross_entropy(masked, own_columns, reduction="sum")
    return sum_over_ranks(total / len(all_labels), ranks)


def neighbour_contrast(
    new: Tensor,
    labels: Tensor,
    *,
    own_old: Tensor,
    others: Tensor,
    other_labels: Tensor,
    tau: float = 0.05,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Contrast new embeddings with old ones, with positives weighted by consensus (NCCL).

    The loss of an image z is the mean of −w·log softmax(⟨z, v⟩/τ) at v⁺, over the old embeddings
    v⁺ of its class. The weight is w = (1 + ⟨own old embedding, v⁺⟩)/2. Images without a positive
    are left out.

    Args:
        new: (batch, dim) with gradients.
        labels: (batch,) integers.
        own_old: (batch, dim) the old embeddings of the same images.
        others: (queue, dim) old embeddings of any images.
        other_labels: (queue,) the classes of ``others``.
        tau: temperature.
        ranks: the ranks that share the batch.
    """
    others = unit_rows(others)
    positive = (labels[:, None] == other_labels[None, :]).to(others.dtype)
    consensus = (1 + unit_rows(own_old) @ others.T) / 2
    log_probability = F.log_softmax(unit_rows(new) @ others.T / tau, dim=1)
    counts = positive.sum(dim=1)
    per_image = -(positive * consensus * log_probability).sum(dim=1) / counts.clamp_min(1)
    return mean_over_ranks(per_image.sum(), (counts > 0).sum(), ranks)
