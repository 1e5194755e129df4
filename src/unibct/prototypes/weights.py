"""How much each image counts in its class's prototype: structural, drop and uniform weights.

Structural refinement (paper, equations 6 to 10) walks at random over the graph of a class's
images, whose edges Ẽ come from the *new* embeddings X, and averages the *old* ones V:

    Ẽ(i,j) = softmax over j ≠ i of ⟨x_i, x_j⟩/τ  (each row sums to 1),
    V∞ = (1−λ)(I − λẼ)⁻¹ V,   prototype = mean of the rows of V∞.

Neither V∞ nor an inverse is needed. The prototype is wᵀV with one weight per image,

    w = λẼᵀw + (1−λ)/m · 1,

a personalised PageRank of the images: the stationary distribution of the walk λẼ + (1−λ)/m, which
restarts at random. Ẽ is similar to a symmetric matrix (its rows are those of a symmetric kernel,
scaled), so its eigenvalues are real and between −1 and 1, and each step of Chebyshev's iteration
reduces the error by λ/(1 + √(1−λ²)): about 35 steps for λ = 0.9, for a whole batch of classes at a
time. Ẽᵀ does not increase the sum of a vector's absolute values, so the residual bounds the error:
‖w − ŵ‖₁ ≤ ‖residual‖₁/(1−λ). As λ comes near 1, the steps become too many and rounding too large;
there one image after another is eliminated instead, in double precision.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unibct.arrays import same_kind
from unibct.prototypes.inputs import (
    PROTOTYPE_KINDS,
    ClassBatch,
    PrototypeSettings,
    ReusedMemory,
    batches_of_like_size,
    class_labels,
    float_tensor,
    valid_rows,
)

_TILE = 1024  # rows of a large class that are multiplied at a time
_LARGEST_ITERATED = 0.999  # a larger λ takes thousands of steps, and more digits than float32 has
_STRIP = 48  # the same for other classes; fewer rows save more work but are multiplied slower


def structural_weights(new: Any, labels: Any, *, tau: float = 0.05, lam: float = 0.9) -> Any:
    """Return the weight w of each image in its class's structural prototype.

    Args:
        new: (images, dim) embeddings that make the graph.
        labels: (images,) integers 0…C-1, each of them in use.
        tau: temperature of the graph's softmax.
        lam: share of the walk that follows the graph, 0 ≤ lam < 1.

    Returns:
        (images,) positive weights that sum to 1 in each class; NumPy or torch as ``new`` is.
    """
    return _image_weights(new, "new", labels, PrototypeSettings("structural", tau=tau, lam=lam))


def drop_weights(old: Any, labels: Any, *, drop: float = 0.1) -> Any:
    """Return 0 for the images farthest from their class mean, and equal weights for the others.

    Args:
        old: (images, dim) embeddings.
        labels: (images,) integers 0…C-1, each of them in use.
        drop: share of images to drop: floor(drop · m) in a class of m images.

    Returns:
        (images,) weights that sum to 1 in each class; NumPy or torch as ``old`` is.
    """
    return _image_weights(old, "old", labels, PrototypeSettings("drop", drop=drop))


def _image_weights(embeddings: Any, name: str, labels: Any, settings: PrototypeSettings) -> Any:
    """Return the weight of each row (rows,), from these embeddings alone, as their kind of array.

    Errors call the embeddings ``name``.
    """
    vectors = float_tensor(embeddings, name)
    label_array = class_labels(labels, len(vectors))
    order, sizes = np.argsort(label_array, kind="stable"), np.bincount(label_array)
    weights = torch.empty(len(vectors), dtype=vectors.dtype, device=vectors.device)
    memory, weigh = ReusedMemory(), PROTOTYPE_KINDS[settings.kind].load()
    for classes, rows in batches_of_like_size(sizes, vectors.shape[1], order):
        valid = valid_rows(sizes[classes], rows, vectors)
        index = torch.from_numpy(rows).to(vectors.device)
        batch = ClassBatch(vectors, vectors, rows, valid, memory)
        weights[index[valid]] = weigh(batch, settings)[valid]
    return same_kind(weights, embeddings)


def weigh_equally(batch: ClassBatch, settings: PrototypeSettings) -> Tensor:
    """Return (classes, m) the weights of ``centroid``: the same for each image of a class."""
    double = batch.old.dtype == torch.float64
    return uniform_weights(batch.valid, torch.float64 if double else torch.float32)


def uniform_weights(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (classes, m) the same weight for each image of a class, and 0 for padding."""
    return valid.to(dtype) / valid.sum(dim=1, keepdim=True)


def weigh_by_distance(batch: ClassBatch, settings: PrototypeSettings) -> Tensor:
    """Return (classes, m) the weights of ``drop``: 0 for the images farthest from the mean."""
    vectors, valid = batch.old_rows(), batch.valid
    means = weighted_sums(vectors, uniform_weights(valid, vectors.dtype))
    gap = vectors * _inverse_lengths(vectors)[:, :, None] - means[:, None]
    distance = gap.square().sum(dim=2).masked_fill_(~valid, torch.inf)
    rank = distance.argsort(dim=1, stable=True).argsort(dim=1)
    images = valid.sum(dim=1, keepdim=True)
    exact = images.to(vectors.dtype if vectors.device.type == "mps" else torch.float64)
    remaining = images - torch.floor(exact * settings.drop + 1e-9).to(images.dtype)
    return (rank < remaining).to(vectors.dtype) / remaining


def weigh_by_walk(batch: ClassBatch, settings: PrototypeSettings) -> Tensor:
    """Return (classes, m) the weights of ``structural``: w of the walk over new embeddings."""
    x, valid, memory = batch.new_rows(), batch.valid, batch.memory
    if x.shape[1] == 1:
        return x.new_ones(len(x), 1)
    lam = settings.lam
    if lam > _LARGEST_ITERATED:
        dtype, device = x.dtype, x.device
        if device.type == "mps":  # which has no doubles
            x, valid = x.cpu(), valid.cpu()
        weights = _eliminated(_walk(x.double(), valid, settings, memory))
        return (weights / weights.sum(dim=1, keepdim=True)).to(device, dtype)
    weights = _chebyshev(_walk(x, valid, settings, memory), uniform_weights(valid, x.dtype), lam)
    return weights / weights.sum(dim=1, keepdim=True)


def _walk(x: Tensor, valid: Tensor, settings: PrototypeSettings, memory: ReusedMemory) -> Tensor:
    """Return the walk λẼ + (1−λ)/m on each class: (classes, m, m), each row sums to 1."""
    lam = settings.lam
    products = class_products(x, memory)
    if not _squares_fit(products.diagonal(dim1=1, dim2=2)):
        products = class_products(x * _inverse_lengths(x)[:, :, None], memory)
    scores = _scores(products, valid, settings.tau)
    walk = torch.softmax(scores, dim=2, out=scores)
    uniform = uniform_weights(valid, x.dtype)
    return torch.add((1 - lam) * uniform[:, None], walk, alpha=lam, out=walk)


def class_products(x: Tensor, memory: ReusedMemory) -> Tensor:
    """Return the scalar products (classes, m, m) between the rows of each class (classes, m, dim).

    They are in memory that the next call overwrites.
    """
    batch, m, _ = x.shape
    products = memory.empty("products", (batch, m, m), x)
    strip = _STRIP if m <= _TILE else _TILE
    for i in range(0, m, strip):  # they are symmetric: each strip begins at the diagonal
        left = x[:, i : i + strip]
        for j in range(i, m, _TILE):
            right = x[:, j : j + _TILE].transpose(1, 2)
            torch.bmm(left, right, out=products[:, i : i + strip, j : j + _TILE])
        below = products[:, i + strip :, i : i + strip]
        below.copy_(products[:, i : i + strip, i + strip :].transpose(1, 2))
    return products


def weighted_sums(vectors: Tensor, weights: Tensor) -> Tensor:
    """Return Σ w_i · v_i/‖v_i‖ of each class: (classes, m, dim), (classes, m) -> (classes, dim)."""
    scale = weights * _inverse_lengths(vectors)
    return torch.bmm(scale[:, None], vectors)[:, 0]


def _inverse_lengths(vectors: Tensor) -> Tensor:
    """Return 1/‖v‖ of each row; in double precision where squares would overflow or vanish."""
    lengths = cast(Tensor, torch.linalg.vector_norm(vectors, dim=-1))
    if not _squares_fit(lengths.square()) and vectors.device.type != "mps":  # MPS has no doubles
        lengths = cast(Tensor, torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64))
    return lengths.clamp_min(torch.finfo(vectors.dtype).tiny).reciprocal().to(vectors.dtype)


def _squares_fit(squares: Tensor) -> bool:
    """Return whether squared lengths are far enough from overflow and underflow."""
    low, high = torch.aminmax(squares)
    return 1e-20 < float(low) <= float(high) < 1e20


def _scores(products: Tensor, valid: Tensor, tau: float) -> Tensor:
    """Overwrite scalar products (classes, m, m) with (cosine − 1)/τ; their diagonal has ‖x‖².

    The score is -inf where there is no edge: on the diagonal, and to a row of padding. (Edges from
    a row of padding do not matter: its weight is 0.)
    """
    diagonal = products.diagonal(dim1=1, dim2=2)
    # Rows of zeros keep products of 0.
    scale = diagonal.clamp_min(torch.finfo(products.dtype).tiny).rsqrt().mul_(tau**-0.5)
    shift = torch.full_like(scale, -1 / tau).masked_fill_(~valid, -torch.inf)
    products.mul_(scale[:, :, None])
    torch.addcmul(shift[:, None, :], products, scale[:, None, :], out=products)
    diagonal.fill_(-torch.inf)
    return products


def _most_steps(lam: float, eps: float) -> int:
    """Return a number of steps after which the error is far below ``eps`` for any class."""
    if lam == 0:
        return 1
    contraction = lam / (1 + (1 - lam**2) ** 0.5)
    return 2 + int(np.ceil(1.5 * np.log(eps) / np.log(contraction)))


def _chebyshev(walk: Tensor, start: Tensor, lam: float) -> Tensor:
    """Solve w = walkᵀw by Chebyshev's iteration (Golub and Varga, 1961).

    Besides 1, all eigenvalues of the walk (classes, m, m), whose rows sum to 1, are between −λ and
    λ. ``start``, (classes, m), is the first estimate; the solution has the same sum.
    """
    eps = torch.finfo(walk.dtype).eps
    steps = _most_steps(lam, eps)
    before = weights = start[:, None]
    omega = 1.0
    for step in range(steps):
        stepped = torch.bmm(weights, walk)
        if step % 4 == 0:
            change = cast(Tensor, torch.linalg.vector_norm(stepped - weights, ord=1, dim=2))
            if float(change.max()) <= 4 * eps:
                return stepped[:, 0]
        before, weights = weights, torch.lerp(before, stepped, omega)
        omega = 1 / (1 - lam**2 / 2) if step == 0 else 1 / (1 - lam**2 * omega / 4)
    return weights[:, 0]


def _eliminated(walk: Tensor) -> Tensor:
    """Solve w = walkᵀw by elimination (Grassmann, Taksar and Heyman, 1985).

    Nothing is subtracted, so each weight is exact to rounding however near 1 λ is. It takes m
    passes over the walk (classes, m, m), which it overwrites: each row sums to 1, and the first
    image is no padding. In the solution, (classes, m), the first image of a class has the weight 1.
    """
    images = walk.shape[1]
    for last in range(images - 1, 0, -1):
        leaving = walk[:, last, :last]
        entering = walk[:, :last, last]
        entering /= leaving.sum(dim=1, keepdim=True)
        walk[:, :last, :last].baddbmm_(entering[:, :, None], leaving[:, None])
    weights = walk.new_ones(len(walk), images)
    for place in range(1, images):
        weights[:, place] = (weights[:, :place] * walk[:, :place, place]).sum(dim=1)
    return weights


TILE = 1024  # prototypes that are compared with all others at a time


def moved_apart(prototypes: Any, *, neighbours: int = 5, step: float = 0.5) -> Any:
    """Move each prototype away from its nearest ones, so that similar classes have room (NDPP).

    p + step · Σ_j w_j (p − p_j) over the nearest ``neighbours``, normalised; the weights w_j are
    the softmax of their cosines.

    Args:
        prototypes: (classes, dim).
        neighbours: how many others push (fewer if there are fewer classes).
        step: how far they push.

    Returns:
        (classes, dim), L2-normalised, NumPy or torch as ``prototypes`` is.
    """
    vectors = torch.nn.functional.normalize(float_tensor(prototypes, "prototypes"), dim=1)
    count = min(neighbours, len(vectors) - 1)
    if count < 1:
        return same_kind(vectors, prototypes)
    moved = torch.empty_like(vectors)
    for start in range(0, len(vectors), TILE):
        tile = vectors[start : start + TILE]
        cosine = tile @ vectors.T
        row = torch.arange(len(tile), device=tile.device)
        cosine[row, row + start] = -torch.inf
        nearest, index = cosine.topk(count, dim=1)
        share = torch.softmax(nearest, dim=1)
        mean = (share[:, :, None] * vectors[index]).sum(dim=1)
        moved[start : start + len(tile)] = tile + step * (tile - mean)
    return same_kind(torch.nn.functional.normalize(moved, dim=1), prototypes)
