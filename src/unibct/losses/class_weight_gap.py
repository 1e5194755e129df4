"""How far class weights are from fixed centres of their classes."""

from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.losses.sum_over_ranks import sum_over_ranks
from unibct.losses.unit_rows import unit_rows


def class_weight_gap(class_weights: Tensor, centres: Tensor, *, ranks: Ranks = ALONE) -> Tensor:
    """Return the mean of 1 − ⟨centre, class weight⟩ over the classes in use of all ranks.

    From LCE.

    Args:
        class_weights: (classes in use, dim) of this rank's classes, with gradients.
        centres: (classes in use, dim) of length 1.
        ranks: the ranks that share the classes.

    Returns:
        The mean, the same on each rank.
    """
    gaps = 1 - (unit_rows(class_weights) * centres).sum(dim=1)
    count = ranks.summed(gaps.new_full((), len(gaps)))
    return sum_over_ranks(gaps.sum() / count, ranks)
