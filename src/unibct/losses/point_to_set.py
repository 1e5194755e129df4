"""The distance of new embeddings from a ball around their class."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.losses.mean_over_ranks import mean_over_ranks
from unibct.losses.unit_rows import unit_rows


def point_to_set(
    new: Tensor,
    centres: Tensor,
    radius: Tensor,
    *,
    ranks: Ranks = ALONE,
    unit_centres: bool = True,
) -> Tensor:
    """Return how far embeddings are outside their class's ball, averaged over those outside.

    From AdvBCT.

    Args:
        new: (batch, dim) with gradients.
        centres: (batch, dim) the centre of each image's class.
        radius: (batch,) the radius of each image's class; infinite for a class without a ball.
        ranks: the ranks that share the batch.
        unit_centres: whether to scale the centres to length 1, or take them as they are.
    """
    centres = unit_rows(centres) if unit_centres else centres
    distance = cast(Tensor, torch.linalg.vector_norm(unit_rows(new) - centres, dim=1))
    outside = F.relu(distance - radius)
    return mean_over_ranks(outside.sum(), (outside > 0).sum(), ranks)
