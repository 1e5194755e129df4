"""Prototypes moved apart, so that similar classes leave each other more room."""

from typing import Any

import torch

from unibct.arrays import same_kind
from unibct.prototypes.inputs import float_tensor

TILE = 1024  # prototypes that are compared with all others at a time


def moved_apart(prototypes: Any, *, neighbours: int = 5, step: float = 0.5) -> Any:
    """Move each prototype away from its nearest ones (neighbour-driven perturbation, NDPP).

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
