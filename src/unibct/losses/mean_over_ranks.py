"""The mean of a loss whose number of terms differs between the ranks."""

from torch import Tensor

from unibct.distributed.ranks import Ranks


def mean_over_ranks(total: Tensor, count: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's loss, such that its mean over the ranks is the mean of all terms.

    Training averages the gradients over the ranks, so each rank must return
    total · world / (sum of all counts).

    Args:
        total: scalar, the sum of this rank's terms, with gradients.
        count: scalar, the number of this rank's terms. It is changed in place.
        ranks: the ranks that share the batch.
    """
    return total * ranks.world / ranks.summed(count).clamp_min(1)
