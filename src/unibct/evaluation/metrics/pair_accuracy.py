"""10-fold accuracy of pairs, as LFW, CFP-FP and AgeDB-30 report it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats
from unibct.errors import UserError


@dataclass(frozen=True)
class FoldAccuracy:
    """The accuracy of each fold, (folds,), and whether each pair is right, (pairs,)."""

    folds: Floats
    correct: NDArray[np.bool_]

    @property
    def mean(self) -> float:
        """The mean over the folds, as the field reports it."""
        return float(self.folds.mean())


def fold_accuracy(scores: Floats, same: NDArray[np.bool_], *, folds: int = 10) -> FoldAccuracy:
    """Return the accuracy of pairs, each fold with the threshold that is best on the others.

    This is the field's procedure: folds are consecutive pairs, and the threshold is the best of
    400 squared distances 2 − 2·score from 0 to 3.99 (the smallest if several are equally good).

    Args:
        scores: (pairs,) cosines.
        same: (pairs,) whether the two images show the same class.
        folds: number of folds.
    """
    if len(scores) != len(same) or len(scores) < folds or folds < 2:
        raise UserError(f"{len(scores)} pairs cannot be divided into {folds} folds")
    distance = 2 - 2 * np.asarray(scores, dtype=np.float64)
    thresholds = np.arange(0, 4, 0.01)
    # A pair is right at a threshold if it is accepted and genuine, or neither.
    fold = np.repeat(np.arange(folds), [len(f) for f in np.array_split(scores, folds)])
    right = np.stack([(distance < threshold) == same for threshold in thresholds], axis=1)
    counts = np.stack([right[fold == number].sum(axis=0) for number in range(folds)])
    best = (counts.sum(axis=0) - counts).argmax(axis=1)
    correct = right[np.arange(len(scores)), best[fold]]
    sizes = np.bincount(fold)
    return FoldAccuracy(np.bincount(fold, weights=correct) / sizes, correct)
