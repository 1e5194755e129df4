"""`procrustes`: the orthogonal map with the least squared distance (Schönemann, 1966)."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.arrays import require_same_dim
from unibct.maps.vector_map import Layers, Pairs


def fit_procrustes(pairs: Pairs, seed: int) -> Layers:
    """Fit an orthogonal map, see ``FitFunction``. The two dimensions must be equal."""
    return ((procrustes(pairs.new, pairs.old, pairs.weights), None),)


def procrustes(new: Tensor, old: Tensor, weights: Tensor) -> Tensor:
    """Return the orthogonal (dim, dim) matrix R that brings R·x closest to v.

    x and v are the normalised rows of ``new`` and ``old``, (images, dim).
    """
    require_same_dim(new, "new", old, "old")
    product = (F.normalize(old, dim=1) * weights[:, None]).T @ F.normalize(new, dim=1)
    product = product.cpu().double()  # some devices have no double precision
    left, _, right = cast(tuple[Tensor, Tensor, Tensor], torch.linalg.svd(product))
    return (left @ right).to(new)
