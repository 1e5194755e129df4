"""The distance of new and old embeddings of the same images."""

from torch import Tensor

from unibct.losses.unit import unit


def regress(new: Tensor, old: Tensor) -> Tensor:
    """Mean squared Euclidean distance of normalised embeddings of the same images (AML).

    Paper, equation 11, without its minus sign: the distance is to be small.

    Args:
        new: (batch, dim) with gradients.
        old: (batch, dim) of the same images.
    """
    return (unit(new) - unit(old)).square().sum(dim=1).mean()
