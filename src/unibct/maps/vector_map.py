"""A map from a new model's embeddings into the old space, fitted without training the new model.

It is fitted on embeddings of the same images by both models. Every class has the same weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unibct.arrays import (
    checked_embeddings,
    checked_labels,
    is_tensor,
    readonly_tensor,
    require_same_dim,
    same_kind,
)
from unibct.distributed.device import callers_generators_kept, seed_generators
from unibct.errors import UserError
from unibct.maps import MAPS

Layers = tuple[tuple[Tensor, Tensor | None], ...]
"""The (weight, bias) of each layer."""


@dataclass(frozen=True)
class Pairs:
    """Embeddings of the same images by both models; the rows need not be normalised."""

    new: Tensor  # (images, new dim) what is mapped
    old: Tensor  # (images, old dim) where it is mapped to
    weights: Tensor  # (images,) they sum to 1, and every class has the same share
    labels: Tensor  # (images,) the classes


_SAME = 1e-6  # rounding of single precision
_BLOCK = 4096  # rows that are compared at a time

FitFunction = Callable[[Pairs, int], Layers]
"""Fits a map. Its arguments: the pairs, and a seed for maps that draw."""


@dataclass(frozen=True)
class VectorMap:
    """A map of embeddings: linear layers with a ReLU between them."""

    kind: str  # a name from ``MAPS``
    layers: Layers  # the (weight, bias) of each layer

    def __call__(self, embeddings: Any) -> Any:
        """Map embeddings into the old space: (n, new dim) -> (n, old dim), L2-normalised."""
        vectors = F.normalize(_as_tensor(embeddings, "embeddings"), dim=1)
        if vectors.shape[1] != self.new_dim:
            raise UserError(
                f"the map takes embeddings of dimension {self.new_dim}, not {vectors.shape[1]}"
            )
        for index, (weight, bias) in enumerate(self.layers):
            weight, bias = weight.to(vectors), None if bias is None else bias.to(vectors)
            vectors = F.linear(F.relu(vectors) if index else vectors, weight, bias)
        return same_kind(F.normalize(vectors, dim=1), embeddings)

    @property
    def new_dim(self) -> int:
        """The dimension of the embeddings that it takes."""
        return self.layers[0][0].shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Return the layers' tensors by name, for a file."""
        named: dict[str, Tensor] = {}
        for index, (weight, bias) in enumerate(self.layers):
            named[f"{index}.weight"] = weight
            if bias is not None:
                named[f"{index}.bias"] = bias
        return named

    @staticmethod
    def of_tensors(kind: str, tensors: dict[str, Tensor]) -> "VectorMap":
        """Make a map from what ``tensors`` returned."""
        count = sum(name.endswith(".weight") for name in tensors)
        layers = [(tensors[f"{i}.weight"], tensors.get(f"{i}.bias")) for i in range(count)]
        return VectorMap(kind, tuple(layers))


def fit_vector_map(kind: str, *, new: Any, old: Any, labels: Any, seed: int = 0) -> VectorMap:
    """Fit a map on embeddings of the same images by both models.

    Args:
        kind: a name from ``MAPS``.
        new: (images, new dim), what is mapped.
        old: (images, old dim), where it is mapped to.
        labels: (images,) the classes. Every class has the same weight.
        seed: of initial weights and batches; the maps by least squares do not use it.
    """
    fit = MAPS.find(kind).fit_function()
    new, old = _fitted_rows(new, "new"), _fitted_rows(old, "old")
    if len(new) != len(old):
        raise UserError(f"new has {len(new)} rows but old has {len(old)}: give both for each image")
    weights = balanced_weights(labels, len(new)).to(new)
    classes = torch.from_numpy(checked_labels(labels, len(new))).to(new.device)
    return VectorMap(kind, fit(Pairs(new, old, weights, classes), seed))


def balanced_weights(labels: Any, images: int) -> Tensor:
    """Return (images,) weights that sum to 1, in which every class has the same share."""
    _, class_index, class_sizes = np.unique(
        checked_labels(labels, images), return_inverse=True, return_counts=True
    )
    return torch.from_numpy(1 / (class_sizes[class_index] * len(class_sizes))).float()


def _fitted_rows(value: Any, name: str) -> Tensor:
    """Return finite embeddings of several different images as a tensor."""
    array = checked_embeddings(value, name)  # tensors too: other calls do not look at their values
    vectors = _as_tensor(value if is_tensor(value) else array, name)
    if not len(vectors):
        raise UserError(f"{name} is empty: a map is fitted on embeddings of several images")
    first = F.normalize(vectors[:1], dim=1)
    # The first block tells, unless all rows are the same.
    blocks = (vectors[start : start + _BLOCK] for start in range(0, len(vectors), _BLOCK))
    if all(float((F.normalize(rows, dim=1) - first).abs().max()) < _SAME for rows in blocks):
        raise UserError(
            f"all rows of {name} have the same direction: a map is fitted on embeddings of several "
            "different images"
        )
    return vectors


def _as_tensor(value: Any, name: str) -> Tensor:
    if not is_tensor(value):
        return readonly_tensor(checked_embeddings(value, name)).float()
    tensor = cast(Tensor, value).detach()
    if tensor.ndim != 2:
        raise UserError(f"{name} must have the shape (rows, dim), not {tuple(tensor.shape)}")
    return tensor.float()


# The maps. Each is a ``FitFunction``; x and v are the normalised rows of new and old embeddings.

_RIDGE = 1e-3  # the ridge of least squares, as a share of the mean variance of a direction


def fit_procrustes(pairs: Pairs, seed: int) -> Layers:
    """Return the orthogonal (dim, dim) matrix R that brings R·x closest to v (Schönemann, 1966).

    The two dimensions must be equal.
    """
    require_same_dim(pairs.new, "new", pairs.old, "old")
    x, v = F.normalize(pairs.new, dim=1), F.normalize(pairs.old, dim=1)
    product = ((v * pairs.weights[:, None]).T @ x).cpu().double()  # some devices have no doubles
    left, _, right = cast(tuple[Tensor, Tensor, Tensor], torch.linalg.svd(product))
    return (((left @ right).to(x), None),)


def fit_linear(pairs: Pairs, seed: int) -> Layers:
    """Return the (old dim, new dim) matrix W that brings W·x closest to v, with a small ridge."""
    x, v = F.normalize(pairs.new, dim=1), F.normalize(pairs.old, dim=1)
    return ((_ridge_solution(x, v, pairs.weights), None),)


def fit_affine(pairs: Pairs, seed: int) -> tuple[tuple[Tensor, Tensor]]:
    """Return W (old dim, new dim) and b (old dim,) that bring W·x + b closest to v.

    Both are centred at their weighted means first, so the ridge shrinks only what differs between
    images: b = mean(v) − W·mean(x).
    """
    x, v = F.normalize(pairs.new, dim=1), F.normalize(pairs.old, dim=1)
    x_mean, v_mean = pairs.weights @ x, pairs.weights @ v
    matrix = _ridge_solution(x - x_mean, v - v_mean, pairs.weights)
    return ((matrix, v_mean - matrix @ x_mean),)


def _ridge_solution(x: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    """Return the (v dim, x dim) matrix W with the least weighted squared distance of W·x to v."""
    weighted = x * weights[:, None]
    moments = (weighted.T @ x).cpu().double()  # some devices have no double precision
    products = (weighted.T @ v).cpu().double()
    ridge = _RIDGE * moments.diagonal().mean()
    moments = moments + ridge * torch.eye(len(moments), dtype=moments.dtype)
    return cast(Tensor, torch.linalg.solve(moments, products)).T.to(x)


_HIDDEN = 4  # hidden units per input dimension
_EPOCHS = 30
_STEPS = 2000  # the least number of steps, for few images
_BATCH = 256
_RATE = 1e-3


def fit_mlp(pairs: Pairs, seed: int) -> Layers:
    """Train a network with one hidden layer to the least squared distance, with Adam.

    The global random state stays as it is.
    """
    x, v, weights = F.normalize(pairs.new, dim=1), F.normalize(pairs.old, dim=1), pairs.weights
    hidden = _HIDDEN * x.shape[1]
    with callers_generators_kept():
        seed_generators(seed)
        layers = [nn.Linear(x.shape[1], hidden), nn.Linear(hidden, v.shape[1])]
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(x.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
    generator = torch.Generator().manual_seed(seed)
    steps = -(-len(x) // _BATCH)
    epochs = max(_EPOCHS, -(-_STEPS // steps))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for start in range(0, len(x), _BATCH):
            rows = order[start : start + _BATCH]
            gap = F.normalize(network(x[rows]), dim=1) - v[rows]
            loss = (len(x) * weights[rows] * gap.square().sum(dim=1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return tuple((layer.weight.detach(), layer.bias.detach()) for layer in layers)


# The best of nine pairs of rate and temperature on glyphs:val, backward. Forward, a temperature of
# 0.1 or 0.2 was better there (docs/maps.md).
_SUPERVISED_STEPS = 800
_SUPERVISED_BATCH = 512
_SUPERVISED_RATE = 1e-2
_TAU = 0.05


def fit_supervised(pairs: Pairs, seed: int) -> Layers:
    """Train a matrix and a shift by supervised contrast with Adam, from those of ``affine``."""
    x, v = F.normalize(pairs.new, dim=1), F.normalize(pairs.old, dim=1)
    matrix, shift = (tensor.clone() for tensor in fit_affine(replace(pairs, new=x, old=v), 0)[0])
    trained = [matrix.requires_grad_(), shift.requires_grad_()]
    optimizer = torch.optim.Adam(trained, lr=_SUPERVISED_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _SUPERVISED_STEPS)
    generator = torch.Generator().manual_seed(seed)
    batch = min(_SUPERVISED_BATCH, len(x))
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(_SUPERVISED_STEPS):
        if len(order) < batch:
            order = torch.randperm(len(x), generator=generator)
        rows, order = order[:batch].to(x.device), order[batch:]
        mapped = F.linear(x[rows], matrix, shift)
        weights = pairs.weights[rows] / pairs.weights[rows].sum()
        loss = supervised_contrast(mapped, v[rows], pairs.labels[rows], weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return ((matrix.detach(), shift.detach()),)


def supervised_contrast(
    mapped: Tensor, old: Tensor, labels: Tensor, weights: Tensor, *, tau: float = _TAU
) -> Tensor:
    """Return the weighted mean over images of −log softmax(⟨z, v⟩/τ) at its class's v.

    Khosla et al., 2020, equation 2, with the old embeddings as the other view: the logarithm is
    averaged over all old embeddings of the image's class, its own included. ``mapped``, z of any
    length, and ``old``, v of length 1, are (batch, dim); the weights (batch,) sum to 1.
    """
    log_share = F.log_softmax(F.normalize(mapped, dim=1) @ old.T / tau, dim=1)
    same_class = (labels[:, None] == labels[None, :]).to(log_share.dtype)
    per_image = -(same_class * log_share).sum(dim=1) / same_class.sum(dim=1)
    return (weights * per_image).sum()
