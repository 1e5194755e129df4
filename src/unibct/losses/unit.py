"""What several losses start from: rows of length 1, and a mean over the batch of all ranks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.ranks import Ranks


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1, at least in single precision whatever autocast made of them."""
    if vectors.dtype in (torch.float16, torch.bfloat16):
        vectors = vectors.float()
    return F.normalize(vectors, dim=1)


def mean_over_ranks(total: Tensor, count: Tensor, ranks: Ranks) -> Tensor:
    """A rank's loss whose mean over the ranks is the sum of all totals by the sum of all counts."""
    return total * ranks.world / ranks.summed(count).clamp_min(1)
