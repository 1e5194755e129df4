"""The losses, as pure functions of embeddings."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.arrays import checked_embeddings, checked_labels, is_tensor, readonly_tensor
from unibct.errors import UserError
from unibct.ranks import ALONE, Ranks


def arcface(
    embeddings: Any,
    class_vectors: Any,
    labels: Any,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> Tensor:
    """ArcFace: cross entropy of scaled cosines, the target's angle widened by the margin.

    Paper, equation 4. Where θ + margin would pass π, the target's logit goes on as
    cos θ − margin·sin(margin), so that it falls with θ everywhere (as in ArcFace's own code and
    pytorch-metric-learning). Gradients stay finite at θ = 0 and θ = π.

    Args:
        embeddings: (batch, dim), need not be normalised.
        class_vectors: (classes, dim), trainable class weights or frozen prototypes.
        labels: (batch,) integers, rows of ``class_vectors``.
        scale: s, multiplies the cosines.
        margin: m, in radians.

    Returns:
        The mean over the batch, a scalar tensor.
    """
    if not is_tensor(embeddings):
        embeddings = readonly_tensor(checked_embeddings(embeddings, "embeddings"))
    if not is_tensor(class_vectors):
        class_vectors = readonly_tensor(checked_embeddings(class_vectors, "class_vectors"))
    if not is_tensor(labels):
        labels = readonly_tensor(checked_labels(labels))
    class_vectors, labels = class_vectors.to(embeddings.device), labels.to(embeddings.device)
    _check_arcface(embeddings, class_vectors, labels)
    labels = labels.long()
    dtype = torch.promote_types(embeddings.dtype, class_vectors.dtype)
    cosine = F.linear(unit(embeddings.to(dtype)), unit(class_vectors.to(dtype)))
    target = cosine.gather(1, labels[:, None])
    logits = scale * cosine.scatter(1, labels[:, None], widened_cosine(target, margin))
    return F.cross_entropy(logits, labels)


def widened_cosine(cosine: Tensor, margin: float) -> Tensor:
    """cos(θ + margin) from cos θ, monotone in θ, with a finite slope at cos θ = ±1."""
    cosine = cosine.clamp(-1, 1)
    # The slope of the square root is infinite at 0; below eps it is cut off.
    sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
    widened = cosine * math.cos(margin) - sine * math.sin(margin)
    past_pi = cosine - margin * math.sin(margin)
    return torch.where(cosine > -math.cos(margin), widened, past_pi)


def regress(new: Tensor, old: Tensor) -> Tensor:
    """Mean squared Euclidean distance of normalised embeddings of the same images (AML).

    Paper, equation 11, without its minus sign: the distance is to be small.

    Args:
        new: (batch, dim) with gradients.
        old: (batch, dim) of the same images.
    """
    return (unit(new) - unit(old)).square().sum(dim=1).mean()


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
    own = torch.arange(len(all_labels), device=logits.device)[ranks.part(len(all_labels))]
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
    return _mean(per_image.sum(), (counts > 0).sum(), ranks)


def point_to_set(new: Tensor, centres: Tensor, radius: Tensor, *, ranks: Ranks = ALONE) -> Tensor:
    """How far embeddings lie outside their class's ball, as the mean over those outside (AdvBCT).

    Args:
        new: (batch, dim) with gradients.
        centres: (batch, dim) the centre of each one's class.
        radius: (batch,) the radius of each one's class.
        ranks: that share a batch.
    """
    distance = cast(Tensor, torch.linalg.vector_norm(unit(new) - unit(centres), dim=1))
    outside = F.relu(distance - radius)
    return _mean(outside.sum(), (outside > 0).sum(), ranks)


def _mean(total: Tensor, count: Tensor, ranks: Ranks) -> Tensor:
    """A rank's loss whose mean over the ranks is the sum of all totals by the sum of all counts."""
    return total * ranks.world / ranks.summed(count).clamp_min(1)


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1, at least in single precision whatever autocast made of them."""
    if vectors.dtype in (torch.float16, torch.bfloat16):
        vectors = vectors.float()
    return F.normalize(vectors, dim=1)


def _check_arcface(embeddings: Tensor, class_vectors: Tensor, labels: Tensor) -> None:
    if embeddings.ndim != 2 or class_vectors.ndim != 2 or len(embeddings) == 0:
        raise UserError(
            "arcface takes embeddings (batch, dim) and class_vectors (classes, dim), not "
            f"{tuple(embeddings.shape)} and {tuple(class_vectors.shape)}"
        )
    if embeddings.shape[1] != class_vectors.shape[1]:
        raise UserError(
            f"embeddings have dimension {embeddings.shape[1]} but class_vectors have "
            f"dimension {class_vectors.shape[1]}"
        )
    if not (embeddings.dtype.is_floating_point and class_vectors.dtype.is_floating_point):
        raise UserError("arcface takes floating point embeddings and class_vectors")
    whole = not labels.dtype.is_floating_point and labels.dtype != torch.bool
    if labels.shape != embeddings.shape[:1] or not whole:
        raise UserError(
            f"labels must be {len(embeddings)} integers, one per embedding, not "
            f"{labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type == "cpu":  # on a GPU the look would wait for the device
        low, high = int(labels.long().min()), int(labels.long().max())
        if low < 0 or high >= len(class_vectors):
            bad = low if low < 0 else high
            raise UserError(f"label {bad} has no row among the {len(class_vectors)} class_vectors")
