"""The distance of new embeddings from the ball of their class."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.losses.unit import mean_over_ranks, unit


def point_to_set(new: Tensor, centres: Tensor, radius: Tensor, *, ranks: Ranks = ALONE) -> Tensor:
    """How far embeddings lie outside their class's ball, as the mean over those outside (AdvBCT).

    Args:
        new: (batch, dim) with gradients.
        centres: (batch, dim) the centre of each one's class.
        radius: (batch,) the radius of each one's class.
        ranks: that share a batch.
    """
    distance = cast(Tensor, torch.linalg.vector_norm(unit(new) - unit(centres), dim=1))
    outside = F.relu(distance - radius)
    return mean_over_ranks(outside.sum(), (outside > 0).sum(), ranks)
