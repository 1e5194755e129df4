"""The distance between new and old embeddings of the same images."""

from torch import Tensor

from unibct.losses.unit_rows import unit_rows


def regress(new: Tensor, old: Tensor) -> Tensor:
    """Return the mean squared Euclidean distance of normalised embeddings (AML).

    Paper, equation 11, without its minus sign: the distance is minimised.

    Args:
        new: (batch, dim) with gradients.
        old: (batch, dim) of the same images.
    """
    return (unit_rows(new) - unit_rows(old)).square().sum(dim=1).mean()
