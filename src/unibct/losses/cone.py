"""The angle of new embeddings beyond a cone around their class."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unibct.distributed.class_shards import ClassPart
from unibct.losses.sum_over_ranks import sum_over_ranks
from unibct.losses.unit_rows import unit_rows


def angles(first: Tensor, second: Tensor) -> Tensor:
    """Return the angles between rows of length 1, in radians: (n, dim), (n, dim) -> (n,).

    2·atan2(‖a − b‖, ‖a + b‖) is accurate at every angle. The arc cosine is not for small angles,
    and its slope is infinite at 0 and π; here the gradient is zero there.
    """
    apart = cast(Tensor, torch.linalg.vector_norm(first - second, dim=1))
    together = cast(Tensor, torch.linalg.vector_norm(first + second, dim=1))
    return 2 * torch.atan2(apart, together)


def outside_cone(
    new: Tensor, labels: Tensor, part: ClassPart, *, centres: Tensor, largest: Tensor
) -> Tensor:
    """Return the mean of max(0, angle(centre of the class, embedding) − the class's largest angle).

    From LCE. Each rank looks at the images of its own classes, whichever rank embedded them.

    Args:
        new: (batch, dim) this rank's part of the batch, with gradients.
        labels: (batch,) the classes of this rank's part, numbered over all ranks.
        part: the classes that ``centres`` and ``largest`` belong to.
        centres: (rows in use, dim) of length 1, the centres of this rank's classes.
        largest: (rows in use,) the largest angles of this rank's classes, in radians.

    Returns:
        The mean over the whole batch, the same on each rank.
    """
    ranks = part.ranks
    all_new = ranks.gathered_rows(unit_rows(new))
    columns = part.columns(ranks.gathered(labels))
    own_columns = columns.clamp_min(0)
    beyond = F.relu(angles(all_new, centres[own_columns]) - largest[own_columns])
    own_beyond = torch.where(columns >= 0, beyond, 0.0)
    return sum_over_ranks(own_beyond.sum() / len(columns), ranks)
