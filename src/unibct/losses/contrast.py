"""Contrast of new embeddings with old ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.losses.unit import mean_over_ranks, unit


def contrast(
    new: Tensor, old: Tensor, labels: Tensor, *, tau: float = 0.05, ranks: Ranks = ALONE
) -> Tensor:
    """Softmax of each image's own old embedding against the old ones of other classes.

    Paper, equation 12. Other images of the same class are left out of the sum.

    Args:
        new: (batch, dim) with gradients.
        old: (batch, dim) of the same images; those of all ranks are the others.
        labels: (batch,) integers.
        tau: temperature.
        ranks: that share a batch; the loss is the mean over this one's part.
    """
    all_labels = ranks.gathered(labels)
    logits = unit(new) @ ranks.gathered(unit(old)).T / tau
    own = torch.arange(len(all_labels), device=logits.device)[ranks.batch_slice(len(all_labels))]
    same_class = labels[:, None] == all_labels[None, :]
    same_class[torch.arange(len(labels), device=logits.device), own] = False
    return F.cross_entropy(logits.masked_fill(same_class, -torch.inf), own)


def neighbour_contrast(
    new: Tensor,
    labels: Tensor,
    *,
    own: Tensor,
    others: Tensor,
    other_labels: Tensor,
    tau: float = 0.05,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Supervised contrast of new embeddings with old ones, positives weighted by consensus (NCCL).

    An image's loss is the mean over the old embeddings v⁺ of its class of −w·log softmax(⟨z, v⟩/τ)
    at v⁺, where w = (1 + ⟨own old embedding, v⁺⟩)/2. Images without a positive count nothing.

    Args:
        new: (batch, dim) with gradients.
        labels: (batch,) integers.
        own: (batch, dim) the old embeddings of the same images.
        others: (queue, dim) old embeddings of any images.
        other_labels: (queue,) their classes.
        tau: temperature.
        ranks: that share a batch.
    """
    others = unit(others)
    positive = (labels[:, None] == other_labels[None, :]).to(others.dtype)
    consensus = (1 + unit(own) @ others.T) / 2
    log_share = F.log_softmax(unit(new) @ others.T / tau, dim=1)
    counts = positive.sum(dim=1)
    per_image = -(positive * consensus * log_share).sum(dim=1) / counts.clamp_min(1)
    return mean_over_ranks(per_image.sum(), (counts > 0).sum(), ranks)
