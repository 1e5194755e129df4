"""Prototypes of embeddings that are in memory, computed in batches of classes."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unibct.progress import Advance, ignore
from unibct.prototypes.batching import (
    ClassBatch,
    ReusedMemory,
    batches_of_like_size,
    take_rows,
    valid_rows,
)
from unibct.prototypes.inputs import PrototypeSettings
from unibct.prototypes.kinds import PROTOTYPE_KINDS
from unibct.prototypes.weights import weighted_sums

_CACHE_ENTRIES = 260_000  # numbers that fit the innermost cache that holds more than a few rows


def grouped_prototypes(
    old: Tensor,
    sizes: NDArray[np.int64],
    *,
    new: Tensor,
    settings: PrototypeSettings,
    order: NDArray[np.int64] | None = None,
    advance: Advance = ignore,
) -> Tensor:
    """Compute the prototypes of classes whose rows are grouped by class, without any checks.

    Args:
        old: (images, dim) of any floating point type.
        sizes: (classes,) images of each class, at least one.
        new: (images, dim′) of any floating point type; used if the kind needs it.
        settings: how the prototypes are computed.
        order: the rows of the first class, then of the second, …; 0, 1, … by default.
        advance: is called with the number of images of each batch.

    Returns:
        (classes, dim) float32 (float64 if ``old`` is), L2-normalised.
    """
    dtype = old.dtype if old.dtype == torch.float64 else torch.float32
    prototypes = old.new_empty(len(sizes), old.shape[1], dtype=dtype)
    memory, weigh = ReusedMemory(), PROTOTYPE_KINDS[settings.kind].load()
    for classes, rows in batches_of_like_size(sizes, max(old.shape[1], new.shape[1]), order):
        valid = valid_rows(sizes[classes], rows, old)
        weights = weigh(ClassBatch(old, new, rows, valid, memory), settings)
        sums = _sums_of_rows(old, rows, weights.to(dtype), memory)
        prototypes[torch.from_numpy(classes)] = torch.nn.functional.normalize(sums, dim=1)
        advance(int(sizes[classes].sum()))
    return prototypes


def _sums_of_rows(
    vectors: Tensor, rows: NDArray[np.int64], weights: Tensor, memory: ReusedMemory
) -> Tensor:
    """Return Σ w_i · v_i/‖v_i‖ (classes, dim) of a batch.

    It takes three passes over the rows, so a few classes at a time are kept in the cache.
    """
    step = max(1, _CACHE_ENTRIES // (rows.shape[1] * vectors.shape[1]))
    parts = [slice(i, i + step) for i in range(0, len(rows), step)]
    return torch.cat(
        [weighted_sums(take_rows(vectors, rows[p], memory), weights[p]) for p in parts]
    )
