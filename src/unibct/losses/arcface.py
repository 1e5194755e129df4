"""ArcFace, the softmax loss with an angular margin."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.arrays import checked_embeddings, checked_labels, is_tensor, readonly_tensor
from unibct.errors import UserError
from unibct.losses.unit_rows import unit_rows


def arcface(
    embeddings: Any,
    class_vectors: Any,
    labels: Any,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> Tensor:
    """Compute ArcFace: cross entropy of scaled cosines, with a margin added to the target's angle.

    Paper, equation 4. Where θ + margin would exceed π, the target's logit is
    cos θ − margin·sin(margin) instead, so that it decreases in θ everywhere (as in ArcFace's own
    code and pytorch-metric-learning). Gradients stay finite at θ = 0 and θ = π.

    Args:
        embeddings: (batch, dim), not necessarily normalised.
        class_vectors: (classes, dim) trainable class weights or frozen prototypes.
        labels: (batch,) integers, rows of ``class_vectors``.
        scale: s, the factor of the cosines.
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
    dtype = torch.promote_types(embeddings.dtype, class_vectors.dtype)
    cosine = F.linear(unit_rows(embeddings.to(dtype)), unit_rows(class_vectors.to(dtype)))
    return arcface_of_cosines(cosine, labels.long(), scale=scale, margin=margin)


def arcface_of_cosines(cosine: Tensor, labels: Tensor, *, scale: float, margin: float) -> Tensor:
    """Compute ``arcface`` from the cosines of embeddings and class vectors, without any check.

    Args:
        cosine: (batch, classes).
        labels: (batch,) int64, columns of ``cosine``.
        scale: s.
        margin: m, in radians.
    """
    target = cosine.gather(1, labels[:, None])
    logits = scale * cosine.scatter(1, labels[:, None], widened_cosine(target, margin))
    return F.cross_entropy(logits, labels)


def widened_cosine(cosine: Tensor, margin: float) -> Tensor:
    """Compute cos(θ + margin) from cos θ, monotone in θ, with a finite slope at cos θ = ±1."""
    cosine = cosine.clamp(-1, 1)
    # The square root has an infinite slope at 0; clamping at eps keeps it finite.
    sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
    widened = cosine * math.cos(margin) - sine * math.sin(margin)
    past_pi = cosine - margin * math.sin(margin)
    return torch.where(cosine > -math.cos(margin), widened, past_pi)


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
    are_integers = not labels.dtype.is_floating_point and labels.dtype != torch.bool
    if labels.shape != embeddings.shape[:1] or not are_integers:
        raise UserError(
            f"labels must be {len(embeddings)} integers, one per embedding, not "
            f"{labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type == "cpu":  # on a GPU this check would wait for the device
        low, high = int(labels.long().min()), int(labels.long().max())
        if low < 0 or high >= len(class_vectors):
            bad_label = low if low < 0 else high
            raise UserError(
                f"label {bad_label} has no row among the {len(class_vectors)} class_vectors"
            )
