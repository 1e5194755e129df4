"""One vector per class in the old space: centroid, drop and structural prototypes.

Structural refinement (paper, equations 6 to 10) walks at random over the graph of a class's
images, whose edges Ẽ come from the *new* embeddings X, and averages the *old* ones V:

    Ẽ(i,j) = softmax over j ≠ i of ⟨x_i, x_j⟩/τ  (each row sums to 1),
    V∞ = (1−λ)(I − λẼ)⁻¹ V,   prototype = mean of the rows of V∞.

Neither V∞ nor an inverse is needed. The prototype is wᵀV with one weight per image,

    w = λẼᵀw + (1−λ)/m · 1,

a personalised PageRank of the images: the stationary distribution of the walk λẼ + (1−λ)/m, which
restarts at random. Ẽ is similar to a symmetric matrix (its rows are a symmetric kernel's, scaled),
so its eigenvalues are real and lie in [−1, 1], and Chebyshev's iteration contracts the error by
λ/(1 + √(1−λ²)) a step: some 35 steps for λ = 0.9, for a whole batch of classes at a time. Ẽᵀ does
not lengthen a vector's sum of absolute values, so the residual bounds the error:
‖w − ŵ‖₁ ≤ ‖residual‖₁/(1−λ).
"""

import math
from collections.abc import Callable, Iterator
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

_BATCH_ENTRIES = 2_000_000  # numbers (rows · dim) of a batch, so that it stays in the cache
_CACHE_ENTRIES = 260_000  # the same for the innermost cache that holds more than a few rows
_TILE = 1024  # rows of a large class that are multiplied at a time
_STRIP = 48  # the same of other classes; less saves more, but is multiplied less efficiently
_MULTIPLE = 8  # of which the images of a class are made a multiple


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
    require_contiguous_labels(label_array)
    graph = vectors if new is None or kind != "structural" else _as_float_tensor(new, "new")
    if len(graph) != len(vectors):
        raise UserError(
            f"new has {len(graph)} rows but old has {len(vectors)}: give both for each image"
        )
    order = np.argsort(label_array, kind="stable")
    found = grouped_prototypes(
        vectors,
        np.bincount(label_array),
        new=graph,
        order=order,
        kind=kind,
        tau=tau,
        lam=lam,
        drop=drop,
    )
    return same_kind(found, old)


def grouped_prototypes(
    old: Tensor,
    sizes: NDArray[np.int64],
    *,
    new: Tensor,
    order: NDArray[np.int64] | None = None,
    kind: str = "structural",
    tau: float = 0.05,
    lam: float = 0.9,
    drop: float = 0.1,
) -> Tensor:
    """The prototypes of classes whose images stand one behind the other; nothing is checked.

    Fastest where the classes stand in the order of their sizes: then no row is copied.

    Args:
        old: (images, dim) of any floating point type.
        sizes: (classes,) images of each class, at least one.
        new: (images, dim′) likewise; only ``structural`` uses it.
        order: the rows of the first class, then of the second, …; as they stand without it.
        kind: as for ``class_prototypes``, like the rest.
        tau: temperature of the graph's softmax.
        lam: share of the walk that follows the graph.
        drop: share of a class's images that ``drop`` leaves out.

    Returns:
        (classes, dim) float32 (float64 if ``old`` is).
    """
    check_settings(kind, tau, lam, drop)
    found = old.new_empty(len(sizes), old.shape[1], dtype=_wide(old.dtype))
    space = Space()
    for classes, rows in batches_of_like_size(sizes, max(old.shape[1], new.shape[1]), order):
        real = _real(sizes[classes], rows, old)
        if kind == "structural":
            weights = _walk_weights(taken(new, rows, space, "new"), real, tau, lam, space)
        elif kind == "drop":
            weights = _drop_weights(taken(old, rows, space), real, drop)
        else:
            weights = _uniform_weights(real, found.dtype)
        sums = _weighted_sums(old, rows, weights.to(found.dtype), space)
        found[torch.from_numpy(classes)] = torch.nn.functional.normalize(sums, dim=1)
    return found


def check_settings(kind: str, tau: float, lam: float, drop: float) -> None:
    """Refuse settings that make no prototype."""
    if kind not in PROTOTYPE_KINDS:
        raise UserError(
            f"unknown kind of prototype {kind!r}; choose one of {', '.join(PROTOTYPE_KINDS)}"
        )
    if not tau > 0:
        raise UserError(f"tau must be positive, not {tau}")
    if not 0 <= lam < 1:
        raise UserError(f"lam must be at least 0 and below 1, not {lam}: at 1 the walk forgets V")
    if not 0 <= drop < 1:
        raise UserError(f"drop must be at least 0 and below 1, not {drop}")


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
    check_settings("structural", tau, lam, 0)
    vectors = _as_float_tensor(new, "new")
    space = Space()
    return _weights(
        vectors, labels, lambda part, real: _walk_weights(part, real, tau, lam, space), new
    )


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
    check_settings("drop", 1, 0, drop)
    vectors = _as_float_tensor(old, "old")
    return _weights(vectors, labels, lambda part, real: _drop_weights(part, real, drop), old)


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


def _weights(
    vectors: Tensor,
    labels: Any,
    weigh: Callable[[Tensor, Tensor], Tensor],
    example: Any,
) -> Any:
    """The weight of each row, from a function that weighs the rows of a batch of classes."""
    label_array = checked_labels(labels, len(vectors))
    require_contiguous_labels(label_array)
    order, sizes = np.argsort(label_array, kind="stable"), np.bincount(label_array)
    weights = torch.empty(len(vectors), dtype=vectors.dtype, device=vectors.device)
    space = Space()
    for classes, rows in batches_of_like_size(sizes, vectors.shape[1], order):
        real = _real(sizes[classes], rows, vectors)
        index = torch.from_numpy(rows).to(vectors.device)
        weights[index[real]] = weigh(taken(vectors, rows, space), real)[real]
    return same_kind(weights, example)


class Space:
    """Memory that one batch after the other uses: fresh memory costs more than the arithmetic."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def empty(
        self, name: str, shape: tuple[int, ...], example: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A tensor like the example, in the memory that was last given for ``name``."""
        count = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = example.new_empty(count, dtype=dtype or example.dtype)
        return kept[:count].view(shape)


def batches_of_like_size(
    sizes: NDArray[np.int64], dim: int, order: NDArray[np.int64] | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Classes by ascending size, as many at a time as the processor's cache likes.

    All classes of a batch are filled up to the same multiple of 8 images: matrices of such sizes
    are multiplied up to twice as fast as others. (A single image is not filled up.)

    Args:
        sizes: (classes,) images of each class.
        dim: numbers in a row.
        order: the rows of the first class, then of the second, …; 0, 1, … without it.

    Yields:
        The classes, and their rows (classes, m), filled up with the class's first one.
    """
    starts = np.cumsum(sizes) - sizes
    filled = np.where(sizes == 1, 1, -(-sizes // _MULTIPLE) * _MULTIPLE)
    by_size = np.argsort(filled, kind="stable")
    begin = 0
    while begin < len(by_size):
        m = int(filled[by_size[begin]])
        room = max(1, _BATCH_ENTRIES // (m * max(m, dim)))
        classes = by_size[begin : begin + room]
        classes = classes[filled[classes] == m]
        column = np.arange(m)
        rows = starts[classes][:, None] + np.where(column < sizes[classes][:, None], column, 0)
        yield classes, rows if order is None else order[rows]
        begin += len(classes)


def class_products(x: Tensor, space: Space) -> Tensor:
    """The scalar products (classes, m, m) between the rows of each class.

    Args:
        x: (classes, m, dim).
        space: for the result, which the next call overwrites.
    """
    batch, m, _ = x.shape
    products = space.empty("products", (batch, m, m), x)
    strip = _STRIP if m <= _TILE else _TILE
    for i in range(0, m, strip):  # they are symmetric: each strip begins at the diagonal
        left = x[:, i : i + strip]
        for j in range(i, m, _TILE):
            right = x[:, j : j + _TILE].transpose(1, 2)
            torch.bmm(left, right, out=products[:, i : i + strip, j : j + _TILE])
        below = products[:, i + strip :, i : i + strip]
        below.copy_(products[:, i : i + strip, i + strip :].transpose(1, 2))
    return products


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def taken(vectors: Tensor, rows: NDArray[np.int64], space: Space, name: str = "rows") -> Tensor:
    """Rows (classes, m, dim) of some classes, widened to float32; the next call overwrites them."""
    shape = (rows.size, vectors.shape[1])
    part = space.empty(f"{name} as they are", shape, vectors)
    if vectors.device.type == "cpu":  # twice as fast as torch's; nothing is out of bounds
        np.take(vectors.numpy(), rows.ravel(), axis=0, out=part.numpy(), mode="clip")
    else:
        index = torch.from_numpy(rows.ravel()).to(vectors.device)
        torch.index_select(vectors, 0, index, out=part)
    if vectors.dtype not in (torch.float32, torch.float64):
        part = space.empty(name, shape, vectors, torch.float32).copy_(part)
    return part.view(*rows.shape, -1)


def _real(sizes: NDArray[np.int64], rows: NDArray[np.int64], example: Tensor) -> Tensor:
    """(classes, m) which rows of a batch are a class's own, not filled up."""
    column = torch.arange(rows.shape[1], device=example.device)
    return column < torch.from_numpy(sizes).to(example.device)[:, None]


def _inverse_lengths(vectors: Tensor) -> Tensor:
    """1/‖v‖ of each row; in double precision where the squares would overflow or vanish."""
    lengths = cast(Tensor, torch.linalg.vector_norm(vectors, dim=-1))
    if not _squares_fit(lengths.square()) and vectors.device.type != "mps":  # MPS has no doubles
        lengths = cast(Tensor, torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64))
    return lengths.clamp_min(torch.finfo(vectors.dtype).tiny).reciprocal().to(vectors.dtype)


def _squares_fit(squares: Tensor) -> bool:
    """Whether squared lengths are so far from the ends of the range that nothing was lost."""
    low, high = torch.aminmax(squares)
    return 1e-20 < float(low) <= float(high) < 1e20


def _uniform_weights(real: Tensor, dtype: torch.dtype) -> Tensor:
    return real.to(dtype) / real.sum(dim=1, keepdim=True)


def _drop_weights(vectors: Tensor, real: Tensor, drop: float) -> Tensor:
    means = _class_sums(vectors, _uniform_weights(real, vectors.dtype))
    gap = vectors * _inverse_lengths(vectors)[:, :, None] - means[:, None]
    distance = gap.square().sum(dim=2).masked_fill_(~real, torch.inf)
    rank = distance.argsort(dim=1, stable=True).argsort(dim=1)
    images = real.sum(dim=1, keepdim=True)
    wide = images.to(vectors.dtype if vectors.device.type == "mps" else torch.float64)
    kept = images - torch.floor(wide * drop + 1e-9).to(images.dtype)
    return (rank < kept).to(vectors.dtype) / kept


def _weighted_sums(
    vectors: Tensor, rows: NDArray[np.int64], weights: Tensor, space: Space
) -> Tensor:
    """Σ w_i · v_i/‖v_i‖ of a batch, some classes at a time: three passes within the cache."""
    step = max(1, _CACHE_ENTRIES // (rows.shape[1] * vectors.shape[1]))
    parts = [slice(i, i + step) for i in range(0, len(rows), step)]
    return torch.cat([_class_sums(taken(vectors, rows[p], space), weights[p]) for p in parts])


def _class_sums(vectors: Tensor, weights: Tensor) -> Tensor:
    """Σ w_i · v_i/‖v_i‖ over the images of each class: (classes, dim)."""
    scale = weights * _inverse_lengths(vectors)
    return torch.bmm(scale[:, None], vectors)[:, 0]


def _walk_weights(x: Tensor, real: Tensor, tau: float, lam: float, space: Space) -> Tensor:
    """The weights w (classes, m) of the walk on each class; 0 where ``real`` is False."""
    if x.shape[1] == 1:
        return x.new_ones(len(x), 1)
    products = class_products(x, space)
    if not _squares_fit(products.diagonal(dim1=1, dim2=2)):
        products = class_products(x * _inverse_lengths(x)[:, :, None], space)
    scores = _scores(products, real, tau)
    walk = torch.softmax(scores, dim=2, out=scores)
    uniform = _uniform_weights(real, x.dtype)
    walk = torch.add((1 - lam) * uniform[:, None], walk, alpha=lam, out=walk)
    weights = _chebyshev(walk, uniform, lam)
    return weights / weights.sum(dim=1, keepdim=True)


def _scores(products: Tensor, real: Tensor, tau: float) -> Tensor:
    """(cosine − 1)/τ in the memory of the scalar products, whose diagonal has the lengths.

    -inf where there is no edge: on the diagonal, and to a row that is not real. (What leads from
    such a row does not matter: its weight is 0.)
    """
    diagonal = products.diagonal(dim1=1, dim2=2)
    # Rows of zeros keep products of 0.
    scale = diagonal.clamp_min(torch.finfo(products.dtype).tiny).rsqrt().mul_(tau**-0.5)
    shift = torch.full_like(scale, -1 / tau).masked_fill_(~real, -torch.inf)
    products.mul_(scale[:, :, None])
    torch.addcmul(shift[:, None, :], products, scale[:, None, :], out=products)
    diagonal.fill_(-torch.inf)
    return products


def _most_steps(lam: float, eps: float) -> int:
    """Steps after which the error is far below ``eps``, whatever the class."""
    if lam == 0:
        return 1
    contraction = lam / (1 + (1 - lam**2) ** 0.5)
    return min(2 + int(np.ceil(1.5 * np.log(eps) / np.log(contraction))), 10_000)


def _chebyshev(walk: Tensor, start: Tensor, lam: float) -> Tensor:
    """Solve w = walkᵀw, with the sum of ``start``, which may be the solution already.

    All other eigenvalues lie in [−λ, λ] (Golub and Varga, 1961).
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
