"""10-fold accuracy of pairs, as LFW, CFP-FP and AgeDB-30 report it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.errors import UserError


@dataclass(frozen=True)
class FoldAccuracy:
    """The accuracy of each fold, and which pairs are right.

    Attributes:
        folds: (folds,) the accuracy of each.
        correct: (pairs,) whether a pair is right at its fold's threshold.
        counts: (folds, thresholds) the right pairs of each fold at each possible threshold.
        sizes: (folds,) how many pairs each has.
    """

    folds: Floats
    correct: NDArray[np.bool_]
    counts: Ints
    sizes: Ints

    @property
    def mean(self) -> float:
        """The mean over the folds, as the field reports it."""
        return float(self.folds.mean())

    def sampled(self, draws: Ints) -> Floats:
        """Return (repeats,): the mean accuracy of drawn folds.

        Each fold gets the threshold that is best on the other drawn folds, so that the chance in
        the thresholds counts too.

        Args:
            draws: (repeats, folds) how often each fold is drawn; at least two of them.
        """
        counts = self.counts.astype(np.float64)  # a product of integers would be slow
        drawn_counts = draws.astype(np.float64) @ counts
        sums = np.zeros(len(draws))
        for fold, times in enumerate(draws.T):
            best = (drawn_counts - times[:, None] * counts[fold]).argmax(axis=1)
            sums += times * counts[fold, best] / self.sizes[fold]
        return sums / draws.sum(axis=1)


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
    return FoldAccuracy(np.bincount(fold, weights=correct) / sizes, correct, counts, sizes)
