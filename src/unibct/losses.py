"""The losses: ArcFace, contrast with old embeddings, and distances from them; tensors in and out.

They measure cosines and distances between rows of length 1. If ranks share a batch and its classes,
each loss is that of the whole batch: the gradients of the network are averaged over the ranks, and
each rank keeps those of its own class vectors. ``ranks`` are those that share the batch.
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.arrays import checked_embeddings, checked_labels, is_tensor, readonly_tensor
from unibct.distributed.ranks import ALONE, ClassesInUse, Ranks
from unibct.errors import UserError


def unit_rows(vectors: Tensor) -> Tensor:
    """Scale rows to length 1: (n, dim) -> (n, dim), in float32 or better even under autocast."""
    if vectors.dtype in (torch.float16, torch.bfloat16):
        vectors = vectors.float()
    return F.normalize(vectors, dim=1)


def sum_over_ranks(total: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum of all ranks' totals, scalars with gradients; the same on each rank.

    The gradient on each rank is that of its own total, so each term counts once. Use it with
    ``Ranks.gathered_rows``, and for class weights, which only one rank holds.
    """
    return total if ranks.world == 1 else cast(Tensor, _Sum.apply(total, ranks))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        total, ranks = args
        return ranks.summed(total.clone())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0], None


def mean_over_ranks(total: Tensor, count: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's loss, such that its mean over the ranks is the mean of all terms.

    For losses whose number of terms differs between the ranks: ``total`` is the sum of this rank's
    terms, with gradients, and ``count`` their number, which is changed in place (both scalars).
    Training averages the gradients, so each rank must return total · world / (sum of all counts).
    """
    return total * ranks.world / ranks.summed(count).clamp_min(1)


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
    """Compute ``arcface`` from cosines (batch, classes), without any check.

    The labels, (batch,) int64, are columns of ``cosine``.
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


def sharded_arcface(
    embeddings: Tensor,
    rows: Tensor,
    labels: Tensor,
    part: ClassesInUse,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
    unit_length: bool = False,
) -> Tensor:
    """Compute ``arcface`` of all ranks' embeddings over the classes in use.

    Each rank holds a range of the classes and computes the logits of the whole batch for these
    only. The softmax's maximum and sum and the target's logit are combined from all ranks.

    Args:
        embeddings: (batch, dim) this rank's part of the batch.
        rows: (rows in use, dim) this rank's class vectors, see ``ClassesInUse.rows``.
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


def contrast(
    labels: Tensor, *, new: Tensor, old: Tensor, tau: float = 0.05, ranks: Ranks = ALONE
) -> Tensor:
    """Contrast each image's own old embedding with the old embeddings of other classes.

    Paper, equation 12: a softmax cross entropy at temperature ``tau``. Other images of the same
    class are left out of the sum. New, with gradients, and old embeddings are (batch, dim) of the
    same images; the old ones of all ranks are gathered. Labels are (batch,) integers. The result is
    the mean over this rank's images.
    """
    all_labels = ranks.gathered(labels)
    logits = unit_rows(new) @ ranks.gathered(unit_rows(old)).T / tau
    columns = torch.arange(len(all_labels), device=logits.device)
    own_columns = columns[ranks.batch_slice(len(all_labels))]
    left_out = labels[:, None] == all_labels[None, :]
    left_out[torch.arange(len(labels), device=logits.device), own_columns] = False
    return F.cross_entropy(logits.masked_fill(left_out, -torch.inf), own_columns)


def mixed_contrast(
    labels: Tensor, *, new: Tensor, old: Tensor, tau: float = 0.01, ranks: Ranks = ALONE
) -> Tensor:
    """Contrast each image's own old embedding with old *and new* embeddings of other classes.

    For galleries with rows of both models: ``contrast`` does not compare the own old embedding
    with new embeddings of other classes, which may then be nearer (RACT). The arguments are those
    of ``contrast``, but new embeddings get gradients as queries and as negatives, all ranks' are
    gathered, and the result is the mean over the whole batch, the same on each rank.
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
    """Contrast new embeddings (batch, dim) with old ones, weighted by consensus (NCCL).

    The loss of an image z is the mean of −w·log softmax(⟨z, v⟩/τ) at v⁺, over the old embeddings
    v⁺ of its class. The weight is w = (1 + ⟨own old embedding, v⁺⟩)/2. Images without a positive
    are left out. ``own_old``, (batch, dim), are the old embeddings of the same images; ``others``,
    (queue, dim), those of any images, whose classes are ``other_labels``, (queue,).
    """
    others = unit_rows(others)
    positive = (labels[:, None] == other_labels[None, :]).to(others.dtype)
    consensus = (1 + unit_rows(own_old) @ others.T) / 2
    log_probability = F.log_softmax(unit_rows(new) @ others.T / tau, dim=1)
    counts = positive.sum(dim=1)
    per_image = -(positive * consensus * log_probability).sum(dim=1) / counts.clamp_min(1)
    return mean_over_ranks(per_image.sum(), (counts > 0).sum(), ranks)


def regress(*, new: Tensor, old: Tensor) -> Tensor:
    """Return the mean squared Euclidean distance of normalised embeddings (AML).

    Paper, equation 11, without its minus sign: the distance is minimised. Both are (batch, dim) of
    the same images, the new ones with gradients.
    """
    return (unit_rows(new) - unit_rows(old)).square().sum(dim=1).mean()


def angles(first: Tensor, second: Tensor) -> Tensor:
    """Return the angles between rows of length 1, in radians: (n, dim), (n, dim) -> (n,).

    2·atan2(‖a − b‖, ‖a + b‖) is accurate at every angle. The arc cosine is not for small angles,
    and its slope is infinite at 0 and π; here the gradient is zero there.
    """
    apart = cast(Tensor, torch.linalg.vector_norm(first - second, dim=1))
    together = cast(Tensor, torch.linalg.vector_norm(first + second, dim=1))
    return 2 * torch.atan2(apart, together)


def outside_cone(
    new: Tensor, labels: Tensor, part: ClassesInUse, *, centres: Tensor, largest: Tensor
) -> Tensor:
    """Return the mean of max(0, angle(centre of the class, embedding) − the class's largest angle).

    From LCE; the mean is over the whole batch, the same on each rank. Each rank looks at the images
    of its own classes, whichever rank embedded them. New embeddings (batch, dim) and labels
    (batch,) are this rank's part of the batch, the labels numbered over all ranks. ``part`` are the
    classes that the centres (rows in use, dim), of length 1, and the largest angles (rows in use,),
    in radians, belong to.
    """
    ranks = part.ranks
    all_new = ranks.gathered_rows(unit_rows(new))
    columns = part.columns(ranks.gathered(labels))
    own_columns = columns.clamp_min(0)
    beyond = F.relu(angles(all_new, centres[own_columns]) - largest[own_columns])
    own_beyond = torch.where(columns >= 0, beyond, 0.0)
    return sum_over_ranks(own_beyond.sum() / len(columns), ranks)


def point_to_set(
    new: Tensor,
    centres: Tensor,
    radius: Tensor,
    *,
    ranks: Ranks = ALONE,
    unit_centres: bool = True,
) -> Tensor:
    """Return how far embeddings are outside their class's ball, averaged over those outside.

    From AdvBCT. Each image (batch, dim) has the centre (batch, dim) and the radius (batch,) of its
    class, infinite for a class without a ball. ``unit_centres`` scales the centres to length 1.
    """
    centres = unit_rows(centres) if unit_centres else centres
    distance = cast(Tensor, torch.linalg.vector_norm(unit_rows(new) - centres, dim=1))
    outside = F.relu(distance - radius)
    return mean_over_ranks(outside.sum(), (outside > 0).sum(), ranks)


def class_weight_gap(class_weights: Tensor, centres: Tensor, *, ranks: Ranks = ALONE) -> Tensor:
    """Return the mean of 1 − ⟨centre, class weight⟩ over the classes in use of all ranks.

    From LCE; the same on each rank. This rank's class weights, with gradients, and the centres, of
    length 1, are (classes in use, dim).
    """
    gaps = 1 - (unit_rows(class_weights) * centres).sum(dim=1)
    count = ranks.summed(gaps.new_full((), len(gaps)))
    return sum_over_ranks(gaps.sum() / count, ranks)
