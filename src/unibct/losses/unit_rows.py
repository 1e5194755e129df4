"""Rows of length 1, in which every loss measures cosines and distances."""

import torch
import torch.nn.functional as F
from torch import Tensor


def unit_rows(vectors: Tensor) -> Tensor:
    """Scale rows to length 1: (n, dim) -> (n, dim), in float32 or better even under autocast."""
    if vectors.dtype in (torch.float16, torch.bfloat16):
        vectors = vectors.float()
    return F.normalize(vectors, dim=1)
