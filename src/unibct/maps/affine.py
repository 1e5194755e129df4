"""`affine`: the linear map of centred embeddings with the least squared distance."""

import torch.nn.functional as F
from torch import Tensor

from unibct.maps.linear import ridge_solution
from unibct.maps.vector_map import Layers, Pairs


def fit_affine(pairs: Pairs, seed: int) -> Layers:
    """Fit a linear map and a shift, see ``FitFunction``."""
    return (centred_least_squares(pairs.new, pairs.old, pairs.weights),)


def centred_least_squares(new: Tensor, old: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return W (old dim, new dim) and b (old dim,) that bring W·x + b closest to v.

    x and v are the normalised rows of ``new`` and ``old``. Both are centred at their weighted means
    first, so the ridge shrinks only what differs between images: b = mean(v) − W·mean(x).
    """
    x, v = F.normalize(new, dim=1), F.normalize(old, dim=1)
    x_mean, v_mean = weights @ x, weights @ v
    matrix = ridge_solution(x - x_mean, v - v_mean, weights)
    return matrix, v_mean - matrix @ x_mean
