"""One vector per class in the old space: centroid, drop and structural prototypes.

Structural refinement (paper, equations 6 to 10) walks at random over the graph of a class's
images, whose edges Ẽ come from the *new* embeddings X, and averages the *old* ones V:

    Ẽ(i,j) = softmax over j ≠ i of ⟨x_i, x_j⟩/τ  (each row sums to 1),
    V∞ = (1−λ)(I − λẼ)⁻¹ V,   prototype = mean of the rows of V∞.

Neither V∞ nor an inverse is needed. The prototype is wᵀV with one weight per image,

    w = λẼᵀw + (1−λ)/m · 1,

a personalised PageRank of the images. Ẽ is similar to a symmetric matrix (its rows are a symmetric
kernel's, scaled), so its eigenvalues are real and lie in [−1, 1], and Chebyshev's iteration
contracts the error by λ/(1 + √(1−λ²)) a step: some 35 steps for λ = 0.9, for a whole batch of
classes at a time. Ẽᵀ does not lengthen a vector's sum of absolute values, so the residual bounds
the error: ‖w − ŵ‖₁ ≤ ‖residual‖₁/(1−λ).
"""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unibct.arrays import (
    checked_embeddings,
    checked_labels,
    is_tensor,
    readonly_tensor,
    require_contiguous_labels,
    same_kind,
)
from unibct.errors import UserError

PROTOTYPE_KINDS = ("centroid", "drop", "structural")

_BATCH_ENTRIES = 8_000_000  # numbers (batch · m · m, and batch · m · dim) that one batch may take
_TILE = 1024  # rows gathered at a time for the kernel of a large class
_CHUNK = 16_384  # rows that the weighted sum takes at a time
_PADDING = 1.15  # a batch's largest class may exceed its smallest by this factor


def class_prototypes(
    old: Any,
    labels: Any,
    *,
    new: Any = None,
    kind: str = "structural",
    tau: float = 0.05,
    lam: float = 0.9,
    drop: float = 0.1,
) -> Any:
    """One L2-normalised prototype per class, in label order.

    Args:
        old: (images, dim) the old model's embeddings.
        labels: (images,) integers 0…C-1, each of them in use.
        new: (images, dim′) the new model's embeddings of the same images, from which
            ``structural`` makes its graph; without it, the graph is that of the old ones.
        kind: ``centroid`` (the mean), ``drop`` (the mean without the share ``drop`` farthest from
            it) or ``structural``.
        tau: temperature of the graph's softmax.
        lam: share of the walk that follows the graph, 0 ≤ lam < 1.
        drop: share of a class's images that ``drop`` leaves out (rounded down).

    Returns:
        (C, dim), NumPy or torch as ``old`` is.
    """
    vectors = _as_float_tensor(old, "old")
    label_array = checked_labels(labels, len(vectors))
    classes = require_contiguous_labels(label_array)
    if kind == "centroid":
        weights = _uniform_weights(vectors, label_array)
    elif kind == "drop":
        weights = drop_weights(vectors, label_array, drop=drop)
    elif kind == "structural":
        graph = vectors if new is None else _as_float_tensor(new, "new")
        if len(graph) != len(vectors):
            raise UserError(
                f"new has {len(graph)} rows but old has {len(vectors)}: give both for each image"
            )
        weights = structural_weights(graph, label_array, tau=tau, lam=lam)
    else:
        raise UserError(
            f"unknown kind of prototype {kind!r}; choose one of {', '.join(PROTOTYPE_KINDS)}"
        )
    prototypes = _weighted_class_sums(vectors, weights, label_array, classes)
    prototypes = torch.nn.functional.normalize(prototypes, dim=1)
    return same_kind(prototypes, old)


def structural_weights(new: Any, labels: Any, *, tau: float = 0.05, lam: float = 0.9) -> Any:
    """The weight w of each image in its class's structural prototype: which images count.

    Args:
        new: (images, dim) embeddings that make the graph.
        labels: (images,) integers 0…C-1, each of them in use.
        tau: temperature of the graph's softmax.
        lam: share of the walk that follows the graph, 0 ≤ lam < 1.

    Returns:
        (images,) positive weights that sum to 1 in each class; NumPy or torch as ``new`` is.
    """
    if not tau > 0:
        raise UserError(f"tau must be positive, not {tau}")
    if not 0 <= lam < 1:
        raise UserError(f"lam must be at least 0 and below 1, not {lam}: at 1 the walk forgets V")
    vectors = _as_float_tensor(new, "new")
    label_array = checked_labels(labels, len(vectors))
    require_contiguous_labels(label_array)
    inverse_lengths = _inverse_lengths(vectors)
    weights = torch.empty(len(vectors), dtype=vectors.dtype, device=vectors.device)
    for rows, sizes in _batches_of_like_size(label_array, vectors.shape[1]):
        row_index = torch.from_numpy(rows).to(vectors.device)
        real = torch.arange(rows.shape[1]) < torch.from_numpy(sizes)[:, None]
        real = real.to(vectors.device)
        cosine = _gram(vectors, inverse_lengths, row_index)
        weights[row_index[real]] = _walk_weights(cosine, real, tau, lam)[real]
    return same_kind(weights, new)


def moved_apart(prototypes: Any, *, neighbours: int = 5, step: float = 0.5) -> Any:
    """Each prototype moved away from its nearest ones (neighbour-driven perturbation, NDPP).

    p + step · Σ_j w_j (p − p_j) over the nearest ``neighbours``, w_j their share of the cosines'
    softmax, then normalised: prototypes that lie close together leave each other more room.

    Args:
        prototypes: (classes, dim).
        neighbours: how many others push (fewer where there are fewer classes).
        step: how far they push.
    """
    vectors = torch.nn.functional.normalize(_as_float_tensor(prototypes, "prototypes"), dim=1)
    count = min(neighbours, len(vectors) - 1)
    if count < 1:
        return same_kind(vectors, prototypes)
    moved = torch.empty_like(vectors)
    for start in range(0, len(vectors), _TILE):
        part = vectors[start : start + _TILE]
        cosine = part @ vectors.T
        row = torch.arange(len(part), device=part.device)
        cosine[row, row + start] = -torch.inf
        nearest, index = cosine.topk(count, dim=1)
        share = torch.softmax(nearest, dim=1)
        mean = (share[:, :, None] * vectors[index]).sum(dim=1)
        moved[start : start + len(part)] = part + step * (part - mean)
    return same_kind(torch.nn.functional.normalize(moved, dim=1), prototypes)


def drop_weights(old: Any, labels: Any, *, drop: float = 0.1) -> Any:
    """1/kept for the images that stay and 0 for the ``drop`` share farthest from the class mean.

    floor(drop · m) images of a class of m are dropped.
    """
    if not 0 <= drop < 1:
        raise UserError(f"drop must be at least 0 and below 1, not {drop}")
    vectors = _as_float_tensor(old, "old")
    label_array = checked_labels(labels, len(vectors))
    classes = require_contiguous_labels(label_array)
    means = _weighted_class_sums(
        vectors, _uniform_weights(vectors, label_array), label_array, classes
    )
    inverse_lengths = _inverse_lengths(vectors)
    distance = np.empty(len(vectors), dtype=np.float64)
    for start in range(0, len(vectors), _CHUNK):
        part = slice(start, start + _CHUNK)
        own_mean = means[torch.from_numpy(label_array[part]).to(means.device)]
        gap = vectors[part] * inverse_lengths[part, None] - own_mean
        distance[part] = gap.square().sum(dim=1).cpu().numpy()
    order = np.lexsort((distance, label_array))
    sizes = np.bincount(label_array)
    kept = sizes - np.floor(sizes * drop + 1e-9).astype(np.int64)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    weights = np.zeros(len(order))
    sorted_labels = label_array[order]
    weights[order] = np.where(rank < kept[sorted_labels], 1 / kept[sorted_labels], 0)
    return same_kind(torch.from_numpy(weights).to(vectors), old)


def _as_float_tensor(value: Any, name: str) -> Tensor:
    """Checked embeddings as a float32 or float64 tensor, sharing memory where that is possible."""
    if is_tensor(value):
        tensor = cast(Tensor, value).detach()
        if tensor.ndim != 2 or tensor.shape[1] == 0 or not tensor.dtype.is_floating_point:
            raise UserError(
                f"{name} must be floating point of shape (rows, dim), "
                f"not {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        finite = torch.isfinite(tensor).all(dim=1)
        if not bool(finite.all()):
            row = int((~finite).int().argmax())
            raise UserError(f"{name} has NaN or infinite values, first in row {row}")
    else:
        array = checked_embeddings(value, name)
        tensor = readonly_tensor(array)
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _inverse_lengths(vectors: Tensor) -> Tensor:
    """1/‖v‖ of each row, so that nothing as large as the data need be normalised."""
    wide = vectors.dtype if vectors.device.type == "mps" else torch.float64  # MPS has no doubles
    lengths = cast(Tensor, torch.linalg.vector_norm(vectors, dim=1, dtype=wide))
    return lengths.clamp_min(torch.finfo(vectors.dtype).tiny).reciprocal().to(vectors.dtype)


def _uniform_weights(vectors: Tensor, labels: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(1 / np.bincount(labels)[labels]).to(vectors)


def _weighted_class_sums(
    vectors: Tensor, weights: Any, labels: NDArray[np.int64], classes: int
) -> Tensor:
    """Σ w_i · v_i/‖v_i‖ over the images of each class; temporaries of a bounded size."""
    weights = torch.as_tensor(weights).to(vectors)
    scale = (weights * _inverse_lengths(vectors))[:, None]
    index = torch.from_numpy(labels).to(vectors.device)
    sums = torch.zeros(classes, vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    for start in range(0, len(vectors), _CHUNK):
        part = slice(start, start + _CHUNK)
        sums.index_add_(0, index[part], vectors[part] * scale[part])
    return sums


def _batches_of_like_size(
    labels: NDArray[np.int64], dim: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Row indices of classes of like size, padded with the class's first row.

    Yields:
        rows (batch, m) and the true class sizes (batch,), with batch · m · max(m, dim) bounded.
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    by_size = np.argsort(sizes, kind="stable")
    begin = 0
    while begin < len(by_size):
        limit = int(sizes[by_size[begin]] * _PADDING)
        end = begin + 1
        while end < len(by_size) and sizes[by_size[end]] <= limit:
            m = int(sizes[by_size[end]])
            if (end - begin + 1) * m * max(m, dim) > _BATCH_ENTRIES:
                break
            end += 1
        batch = by_size[begin:end]
        column = np.arange(int(sizes[batch].max()))
        offset = np.where(column < sizes[batch][:, None], column, 0)
        yield order[starts[batch][:, None] + offset], sizes[batch]
        begin = end


def _gram(vectors: Tensor, inverse_lengths: Tensor, rows: Tensor) -> Tensor:
    """(batch, m, m) cosines between the rows of each class, from tiles of bounded size."""
    batch, m = rows.shape
    if m <= _TILE:
        x = vectors[rows] * inverse_lengths[rows][:, :, None]
        return x @ x.transpose(1, 2)
    cosine = torch.empty(batch, m, m, dtype=vectors.dtype, device=vectors.device)
    for i in range(0, m, _TILE):
        left_rows = rows[:, i : i + _TILE]
        left = vectors[left_rows] * inverse_lengths[left_rows][:, :, None]
        for j in range(i, m, _TILE):
            right_rows = rows[:, j : j + _TILE]
            right = vectors[right_rows] * inverse_lengths[right_rows][:, :, None]
            tile = left @ right.transpose(1, 2)
            cosine[:, i : i + _TILE, j : j + _TILE] = tile
            if j > i:
                cosine[:, j : j + _TILE, i : i + _TILE] = tile.transpose(1, 2)
    return cosine


def _walk_weights(cosine: Tensor, real: Tensor, tau: float, lam: float) -> Tensor:
    """Weights w (batch, m) of the walk on each class; 0 where ``real`` is False (padding)."""
    no_edge = ~(real[:, :, None] & real[:, None, :])
    no_edge |= torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
    walk = torch.softmax(cosine.div_(tau).masked_fill_(no_edge, -torch.inf), dim=2)
    walk.masked_fill_(no_edge, 0)  # also the row of a class's only image, where the softmax is 0/0
    start = real.to(walk.dtype) / real.sum(dim=1, keepdim=True)
    weights = _chebyshev(walk, (1 - lam) * start, start, lam)
    return weights / weights.sum(dim=1, keepdim=True)


def _chebyshev(walk: Tensor, constant: Tensor, start: Tensor, lam: float) -> Tensor:
    """Solve w = λ·walkᵀw + constant for each matrix of the batch (Golub and Varga, 1961)."""
    eps = torch.finfo(walk.dtype).eps
    contraction = lam / (1 + (1 - lam**2) ** 0.5)
    steps = 2 + int(np.ceil(1.5 * np.log(eps) / np.log(contraction))) if lam > 0 else 1
    steps = min(steps, 10_000)  # enough for λ = 0.999999
    before, weights, omega = start, start, 1.0
    for step in range(steps):
        stepped = lam * torch.bmm(weights[:, None, :], walk)[:, 0, :] + constant
        if step % 4 == 3 and float((stepped - weights).abs().sum(dim=1).max()) <= 4 * eps:
            return stepped
        before, weights = weights, before + omega * (stepped - before)
        omega = 1 / (1 - lam**2 / 2) if step == 0 else 1 / (1 - lam**2 * omega / 4)
    return weights
