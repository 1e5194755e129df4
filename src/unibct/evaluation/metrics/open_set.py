"""1:N identification in an open set: some queries have no mate and must be refused."""

from dataclasses import dataclass

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.errors import UserError


@dataclass(frozen=True)
class OpenSearch:
    """The scores of each query in one gallery that an open-set search depends on.

    Attributes:
        mate: (queries with a mate,) the score of the best mate.
        other: (queries with a mate,) the best score of another subject.
        unmated: (queries without a mate,) the best score.
        mate_classes: (queries with a mate,) the class of each, for intervals.
        unmated_classes: (queries without a mate,) the class of each.
    """

    mate: Floats
    other: Floats
    unmated: Floats
    mate_classes: Ints | None = None
    unmated_classes: Ints | None = None

    def tpir(self, fpir: float) -> float:
        """Return the share of mates that score above all others and above the threshold.

        The threshold follows the field's rule: sort the n scores of queries without a mate in
        descending order and take the one at index max(floor(n · fpir) − 1, 0).
        """
        if not 0 < fpir <= 1:
            raise UserError(f"a false positive identification rate lies in (0, 1], not {fpir}")
        if not len(self.mate) or not len(self.unmated):
            missing = "with" if not len(self.mate) else "without"
            raise UserError(
                f"no probe is {missing} a mate in a gallery: the open set needs both kinds"
            )
        place = max(int(len(self.unmated) * fpir + 1e-9) - 1, 0)
        threshold = float(np.sort(self.unmated)[::-1][place])
        return float(np.mean((self.mate > threshold) & (self.mate > self.other)))
