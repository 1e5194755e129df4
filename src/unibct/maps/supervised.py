"""`supervised`: an affine map trained by supervised contrast with the old embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.maps.affine import centred_least_squares
from unibct.maps.vector_map import Layers, Pairs

# The best of nine pairs of rate and temperature on glyphs:val, backward. Forward, a temperature of
# 0.1 or 0.2 was better there (docs/maps.md).
_STEPS = 800
_BATCH = 512
_RATE = 1e-2
_TAU = 0.05


def fit_supervised(pairs: Pairs, seed: int) -> Layers:
    """Train a matrix and a shift with Adam, from those of ``affine``; see ``FitFunction``."""
    x, v = F.normalize(pairs.new, dim=1), F.normalize(pairs.old, dim=1)
    matrix, shift = (t.clone() for t in centred_least_squares(x, v, pairs.weights))
    trained = [matrix.requires_grad_(), shift.requires_grad_()]
    optimizer = torch.optim.Adam(trained, lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    generator = torch.Generator().manual_seed(seed)
    batch = min(_BATCH, len(x))
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(_STEPS):
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
    averaged over all old embeddings of the image's class, its own included.

    Args:
        mapped: (batch, dim) z, of any length.
        old: (batch, dim) v, of length 1.
        labels: (batch,) the classes.
        weights: (batch,) they sum to 1.
        tau: temperature.
    """
    log_share = F.log_softmax(F.normalize(mapped, dim=1) @ old.T / tau, dim=1)
    same_class = (labels[:, None] == labels[None, :]).to(log_share.dtype)
    per_image = -(same_class * log_share).sum(dim=1) / same_class.sum(dim=1)
    return (weights * per_image).sum()
