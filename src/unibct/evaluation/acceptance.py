"""Which pairs of a test a fixed threshold accepts, class by class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.evaluation.bootstrap import ClassDraws, sampled_share
from unibct.evaluation.class_maps import ClassMaps
from unibct.evaluation.search_test import ScoredPairs


@dataclass(frozen=True)
class Acceptance:
    """How many pairs of each class a threshold accepts, and how many there are.

    Attributes:
        genuine: (classes,) accepted genuine pairs.
        impostors: (classes,) accepted impostor pairs, by the class of the query.
        all_genuine: (classes,) all genuine pairs.
        all_impostors: (classes,) all impostor pairs.
    """

    genuine: Ints
    impostors: Ints
    all_genuine: Ints
    all_impostors: Ints

    @property
    def tar(self) -> float:
        """The share of genuine pairs that are accepted."""
        return int(self.genuine.sum()) / int(self.all_genuine.sum())

    @property
    def far(self) -> float:
        """The share of impostor pairs that are accepted."""
        return int(self.impostors.sum()) / int(self.all_impostors.sum())

    def sampled_tar(self, draws: ClassDraws) -> Floats:
        """Return (repeats,): TAR where the pairs of a class count as it is drawn."""
        return sampled_share(self.genuine, self.all_genuine, draws)

    def sampled_far(self, draws: ClassDraws) -> Floats:
        """Return (repeats,): FAR where the pairs of a class count as it is drawn."""
        return sampled_share(self.impostors, self.all_impostors, draws)


def acceptances(
    pairs: ScoredPairs,
    thresholds: Sequence[float],
    classes: int,
    maps: Mapping[str, ClassMaps | None],
) -> dict[str, list[Acceptance]]:
    """Return what each threshold accepts: for each name in ``maps``, an entry per threshold.

    Args:
        pairs: the scores.
        thresholds: a score above it is accepted.
        classes: how many classes the queries have.
        maps: by name, what puts the scores on another scale first; None leaves them as they are.
    """
    genuine: list[Ints] = []
    limits: list[Floats] = []
    for score_map in maps.values():
        scores = pairs.genuine
        if score_map is not None:
            scores = score_map.mapped(scores, pairs.genuine_classes)
        for threshold in thresholds:
            accepted = pairs.genuine_classes[scores > threshold]
            genuine.append(np.bincount(accepted, minlength=classes))
            limits.append(
                np.full(classes, threshold)
                if score_map is None
                else score_map.limits(threshold, pairs.genuine.dtype)
            )
    impostors = pairs.impostor.counts_above(np.stack(limits))
    all_genuine = np.bincount(pairs.genuine_classes, minlength=classes)
    all_impostors = pairs.impostor.class_counts(classes)
    counted = iter(
        Acceptance(right, wrong, all_genuine, all_impostors)
        for right, wrong in zip(genuine, impostors, strict=True)
    )
    return {name: [next(counted) for _ in thresholds] for name in maps}
