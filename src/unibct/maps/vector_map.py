"""A map from a new model's embeddings into the old space, fitted without training the new model.

It is fitted on embeddings of the same images by both models. Every class has the same weight.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.arrays import (
    checked_embeddings,
    checked_labels,
    is_tensor,
    readonly_tensor,
    same_kind,
)
from unibct.errors import UserError
from unibct.maps.table import find_map_kind

Layers = tuple[tuple[Tensor, Tensor | None], ...]
"""The (weight, bias) of each layer."""


@dataclass(frozen=True)
class Pairs:
    """Embeddings of the same images by both models; the rows need not be normalised.

    Attributes:
        new: (images, new dim) what is mapped.
        old: (images, old dim) where it is mapped to.
        weights: (images,) they sum to 1, and every class has the same share.
        labels: (images,) the classes.
    """

    new: Tensor
    old: Tensor
    weights: Tensor
    labels: Tensor


_SAME = 1e-6  # rounding of single precision
_BLOCK = 4096  # rows that are compared at a time

FitFunction = Callable[[Pairs, int], Layers]
"""Fits a map. Its arguments: the pairs, and a seed for maps that draw."""


@dataclass(frozen=True)
class VectorMap:
    """A map of embeddings: linear layers with a ReLU between them.

    Attributes:
        kind: a name from ``MAPS``.
        layers: the (weight, bias) of each layer.
    """

    kind: str
    layers: Layers

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


def fit_vector_map(kind: str, new: Any, old: Any, labels: Any, *, seed: int = 0) -> VectorMap:
    """Fit a map on embeddings of the same images by both models.

    Args:
        kind: a name from ``MAPS``.
        new: (images, new dim), what is mapped.
        old: (images, old dim), where it is mapped to.
        labels: (images,) the classes. Every class has the same weight.
        seed: of initial weights and batches; the maps by least squares do not use it.
    """
    fit = find_map_kind(kind).fit_function()
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
