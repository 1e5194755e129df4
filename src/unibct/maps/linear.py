"""`linear`: the linear map with the least squared distance, with a small ridge."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.maps.vector_map import Layers, Pairs

_RIDGE = 1e-3  # the ridge, as a share of the mean variance of a direction


def fit_linear(pairs: Pairs, seed: int) -> Layers:
    """Fit a linear map, see ``FitFunction``."""
    return ((least_squares(pairs.new, pairs.old, pairs.weights), None),)


def least_squares(new: Tensor, old: Tensor, weights: Tensor) -> Tensor:
    """Return the (old dim, new dim) matrix W that brings W·x closest to v.

    x and v are the normalised rows of ``new``, (images, new dim), and ``old``, (images, old dim).
    """
    return ridge_solution(F.normalize(new, dim=1), F.normalize(old, dim=1), weights)


def ridge_solution(x: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    """Return the (v dim, x dim) matrix W with the least weighted squared distance of W·x to v."""
    weighted = x * weights[:, None]
    moments = (weighted.T @ x).cpu().double()  # some devices have no double precision
    products = (weighted.T @ v).cpu().double()
    ridge = _RIDGE * moments.diagonal().mean()
    moments = moments + ridge * torch.eye(len(moments), dtype=moments.dtype)
    return cast(Tensor, torch.linalg.solve(moments, products)).T.to(x)
