"""Maps of scores onto the old scale, one for the queries of each class."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.evaluation.score_table import Groups


class MonotoneMap(Protocol):
    """A strictly monotone function of scores."""

    def __call__(self, scores: Any) -> NDArray[np.float64]:
        """Map scores."""
        ...

    def highest_up_to(self, limit: float, dtype: Any) -> float:
        """Return the highest score of a floating point type that is not mapped above ``limit``."""
        ...


@dataclass(frozen=True)
class ClassMaps:
    """A score map for the queries of each class.

    Attributes:
        maps: the different ones.
        of_class: (classes,) which of them a class has.
    """

    maps: list[MonotoneMap]
    of_class: Ints

    def mapped(self, scores: Floats, classes: Groups) -> Floats:
        """Return scores of queries of some classes on the old scale."""
        values = np.empty(len(scores))
        for number, score_map in enumerate(self.maps):
            chosen = self.of_class[classes] == number
            values[chosen] = score_map(scores[chosen])
        return values

    def limits(self, threshold: float, dtype: Any) -> Floats:
        """Return (classes,): the highest score of each that is not mapped above a threshold."""
        limits = [score_map.highest_up_to(threshold, dtype) for score_map in self.maps]
        return np.array(limits)[self.of_class]


def same_map(score_map: MonotoneMap, classes: int) -> ClassMaps:
    """Return one map for the queries of all classes."""
    return ClassMaps([score_map], np.zeros(classes, dtype=np.int64))
