"""Maps from the new model's embeddings into the old space, fitted without training the new model.

Each is fitted on embeddings of the same images by both models, every class counting the same:

- ``procrustes``: the orthogonal map with the least squared distance (Schönemann, 1966),
- ``linear``: the linear map with the least squared distance, slightly ridged,
- ``mlp``: one hidden layer, trained to the same end.
"""

from dataclasses import dataclass
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
from unibct.errors import UserError

ADAPTERS = ("procrustes", "linear", "mlp")

_RIDGE = 1e-3  # share of the mean variance that the ridge adds to each direction
_HIDDEN = 4  # hidden units of the MLP, in dimensions
_EPOCHS = 30
_STEPS = 2000  # at least so many, where there are few images
_BATCH = 256
_RATE = 1e-3


@dataclass(frozen=True)
class Adapter:
    """A map of embeddings: one linear layer, or two with a ReLU between them.

    Attributes:
        kind: a name from ``ADAPTERS``.
        layers: (weight, bias) of each layer.
    """

    kind: str
    layers: tuple[tuple[Tensor, Tensor | None], ...]

    def __call__(self, embeddings: Any) -> Any:
        """Carry embeddings over: (n, new dim) -> (n, old dim), L2-normalised."""
        vectors = F.normalize(_as_tensor(embeddings, "embeddings"), dim=1)
        if vectors.shape[1] != self.new_dim:
            raise UserError(
                f"the adapter takes embeddings of dimension {self.new_dim}, not {vectors.shape[1]}"
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
        """Its weights by name, for a file."""
        found: dict[str, Tensor] = {}
        for index, (weight, bias) in enumerate(self.layers):
            found[f"{index}.weight"] = weight
            if bias is not None:
                found[f"{index}.bias"] = bias
        return found

    @staticmethod
    def of_tensors(kind: str, tensors: dict[str, Tensor]) -> "Adapter":
        """The adapter whose weights ``tensors`` gave."""
        count = sum(name.endswith(".weight") for name in tensors)
        layers = [(tensors[f"{i}.weight"], tensors.get(f"{i}.bias")) for i in range(count)]
        return Adapter(kind, tuple(layers))


def fit_adapter(kind: str, new: Any, old: Any, labels: Any, *, seed: int = 0) -> Adapter:
    """Fit a map on embeddings of the same images by both models.

    Args:
        kind: a name from ``ADAPTERS``.
        new: (images, new dim).
        old: (images, old dim).
        labels: (images,) the classes; each counts the same.
        seed: of the MLP's weights and batches.
    """
    if kind not in ADAPTERS:
        raise UserError(f"unknown adapter {kind!r}; choose one of {', '.join(ADAPTERS)}")
    x, v = _as_tensor(new, "new"), _as_tensor(old, "old")
    if len(x) != len(v):
        raise UserError(f"new has {len(x)} rows but old has {len(v)}: give both for each image")
    weights = balanced_weights(labels, len(x)).to(x)
    if kind == "procrustes":
        return Adapter(kind, ((procrustes(x, v, weights), None),))
    if kind == "linear":
        return Adapter(kind, ((least_squares(x, v, weights), None),))
    return Adapter(kind, _fitted_mlp(x, v, weights, seed))


def balanced_weights(labels: Any, images: int) -> Tensor:
    """(images,) weights with which every class counts the same; they sum to 1."""
    _, index, sizes = np.unique(
        checked_labels(labels, images), return_inverse=True, return_counts=True
    )
    return torch.from_numpy(1 / (sizes[index] * len(sizes))).float()


def procrustes(new: Tensor, old: Tensor, weights: Tensor) -> Tensor:
    """The orthogonal (dim, dim) matrix R that brings R·x closest to v, for normalised rows."""
    require_same_dim(new, "new", old, "old")
    product = (F.normalize(old, dim=1) * weights[:, None]).T @ F.normalize(new, dim=1)
    product = product.cpu().double()  # not every device has doubles
    left, _, right = cast(tuple[Tensor, Tensor, Tensor], torch.linalg.svd(product))
    return (left @ right).to(new)


def least_squares(new: Tensor, old: Tensor, weights: Tensor) -> Tensor:
    """The (old dim, new dim) matrix W that brings W·x closest to v, for normalised rows."""
    x = F.normalize(new, dim=1)
    weighted = x * weights[:, None]
    moments = (weighted.T @ x).cpu().double()  # not every device has doubles
    products = (weighted.T @ F.normalize(old, dim=1)).cpu().double()
    ridge = _RIDGE * moments.diagonal().mean()
    moments = moments + ridge * torch.eye(len(moments), dtype=moments.dtype)
    return cast(Tensor, torch.linalg.solve(moments, products)).T.to(new)


def _fitted_mlp(
    new: Tensor, old: Tensor, weights: Tensor, seed: int
) -> tuple[tuple[Tensor, Tensor | None], ...]:
    """Two layers that bring their output closest to the old embeddings, by Adam."""
    x, v = F.normalize(new, dim=1), F.normalize(old, dim=1)
    hidden = _HIDDEN * x.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
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


def _as_tensor(value: Any, name: str) -> Tensor:
    if is_tensor(value):
        return cast(Tensor, value).detach().float()
    return readonly_tensor(checked_embeddings(value, name)).float()
