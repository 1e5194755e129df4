"""The scores of all pairs of different classes, of which only the highest are kept."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.evaluation.score_ranks import ScoreRanks
from unibct.evaluation.score_table import Groups, ScoreTable

_ALWAYS_KEPT = 4_000_000  # that many are kept, if there are enough
_MOST_KEPT = 20_000_000
_KEPT_SHARE = 0.02  # of a large number: thresholds are set at false accept rates up to 1e-2


class Highest:
    """Collects the highest of many scores, and the class of each.

    Attributes:
        floor: no score that was left out is above this.
    """

    def __init__(self, limit: int) -> None:
        """Begin with none; keep at most ``limit``."""
        self.limit = limit
        self.floor = -np.inf
        self._waiting: list[tuple[Floats, Groups]] = []
        self._count = 0

    def add(self, scores: Floats, classes: Groups) -> None:
        """Take (queries, entries) scores, in which -inf is no score, of queries of some classes."""
        above = scores > self.floor
        counts = np.count_nonzero(above, axis=1)
        self._waiting.append((scores[above], np.repeat(classes.astype(np.int32), counts)))
        self._count += int(counts.sum())
        if self._count > 2 * self.limit:
            self._cut()

    def pairs(self) -> tuple[Floats, Groups]:
        """Return the highest scores, in no order, and their classes."""
        self._cut()
        return self._waiting[0]

    def _cut(self) -> None:
        """Leave out all but the highest."""
        parts = self._waiting or [(np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32))]
        scores, classes = (np.concatenate(side) for side in zip(*parts, strict=True))
        if len(scores) > self.limit:
            self.floor = float(np.partition(scores, -self.limit)[-self.limit])
            is_highest = scores > self.floor
            tied = np.flatnonzero(scores == self.floor)
            is_highest[tied[: self.limit - int(is_highest.sum())]] = True
            scores, classes = scores[is_highest], classes[is_highest]
        self._waiting, self._count = [(scores, classes)], len(scores)


class Window(NamedTuple):
    """The pairs between two ranks.

    Attributes:
        scores: in descending order.
        classes: the query's class of each.
        above: (classes,) how many pairs of each class come before the window.
        is_last: whether no pair comes after it.
    """

    scores: Floats
    classes: Groups
    above: Ints
    is_last: bool


class Impostors:
    """Pairs of different classes.

    The highest scores are in memory, and few questions go beyond them. Those that do are answered
    by further passes over the table of scores.
    """

    def __init__(self, table: ScoreTable, highest: Highest | None = None) -> None:
        """Take the table of scores and, if a pass has found them already, its highest."""
        self.table = table
        self._pair_counts = table.impostor_counts()
        self._count = int(self._pair_counts.sum())
        self._given_highest = highest

    def __len__(self) -> int:
        """How many pairs there are."""
        return self._count

    @staticmethod
    def highest_of(pairs: int) -> Highest:
        """Return what collects as many of the pairs as are kept."""
        share = min(int(_KEPT_SHARE * pairs), _MOST_KEPT)
        return Highest(max(1, min(pairs, max(_ALWAYS_KEPT, share))))

    @cached_property
    def _highest(self) -> tuple[Floats, Groups]:
        highest = self._given_highest
        if highest is None:
            highest = self.highest_of(len(self))
            for block in self.table.blocks():
                highest.add(block.others, block.classes)
        return highest.pairs()

    @cached_property
    def _ranks(self) -> ScoreRanks:
        return ScoreRanks(self.table)

    def class_counts(self, classes: int) -> Ints:
        """Return (classes,): how many pairs have a query of each class."""
        return _sums(self._pair_counts, self.table.query_classes, classes)

    def at_ranks(self, ranks: Ints) -> Floats:
        """Return the scores at some ranks; rank 0 is the highest score."""
        scores = self._highest[0]
        scores_at_ranks = np.empty(len(ranks), dtype=scores.dtype)
        is_kept = ranks < len(scores)
        if is_kept.any():
            places = len(scores) - 1 - ranks[is_kept]
            scores_at_ranks[is_kept] = np.partition(scores, np.unique(places))[places]
        if not is_kept.all():
            scores_at_ranks[~is_kept] = self._ranks.at_ranks([ranks[~is_kept]])[0]
        return scores_at_ranks

    def counts_above(self, limits: Floats) -> Ints:
        """Return (limits, classes): how many pairs of each class score above its limit.

        Args:
            limits: (limits, classes).
        """
        counts = np.zeros(limits.shape, dtype=np.int64)
        scores, classes = self._highest
        if len(scores) == len(self) or limits.min() >= scores.min():
            for row, limit in enumerate(limits.astype(scores.dtype)):
                passed = classes[scores > limit[classes]]
                counts[row] = np.bincount(passed, minlength=limits.shape[1])
            return counts
        for block in self.table.blocks():
            for row, limit in enumerate(limits.astype(block.others.dtype)):
                passed = np.count_nonzero(block.others > limit[block.classes, None], axis=1)
                counts[row] += _sums(passed, block.classes, limits.shape[1])
        return counts

    def counts_from(self, values: Floats) -> tuple[Ints, Ints]:
        """Return how many pairs score above each value, and how many exactly as high."""
        above, at_least = (np.zeros(len(values), dtype=np.int64) for _ in range(2))
        lowest = values.min(initial=np.inf)
        for block in self.table.blocks():
            scores = np.sort(block.others[(block.others >= lowest) & (block.others > -np.inf)])
            above += len(scores) - np.searchsorted(scores, values, side="right")
            at_least += len(scores) - np.searchsorted(scores, values, side="left")
        return above, at_least - above

    def window(self, start: int, stop: int, classes: int) -> Window:
        """Return the pairs from rank ``start`` to before rank ``stop``, or some more.

        Args:
            start: the highest rank that must be in it.
            stop: one after the lowest.
            classes: how many classes there are.
        """
        scores, owners = self._highest
        none_above = np.zeros(classes, dtype=np.int64)
        if stop <= len(scores):
            highest = np.argpartition(scores, len(scores) - stop)[len(scores) - stop :]
            return _window(scores[highest], owners[highest], none_above, stop == len(self))
        low, high = self._ranks.edges(start, stop - 1)
        collected = Highest(len(self))
        above = none_above
        for block in self.table.blocks():
            is_above = block.others >= high
            above += _sums(np.count_nonzero(is_above, axis=1), block.classes, classes)
            inside = np.where((block.others >= low) & ~is_above, block.others, -np.inf)
            collected.add(inside, block.classes)
        scores, owners = collected.pairs()
        is_last = len(scores) + int(above.sum()) == len(self)
        return _window(scores, owners, above, is_last)


def listed_impostors(scores: Floats, classes: Groups | None = None) -> Impostors:
    """Return the impostors of a list of pairs.

    Args:
        scores: (pairs,).
        classes: (pairs,) the query's class of each; by default one class for all.
    """
    owners: NDArray[np.integer] = np.zeros(len(scores), np.int32) if classes is None else classes
    return Impostors(ScoreTable(np.asarray(scores)[:, None], owners))


def _window(scores: Floats, classes: Groups, above: Ints, is_last: bool) -> Window:
    order = np.argsort(-scores, kind="stable")
    return Window(scores[order], classes[order], above, is_last)


def _sums(values: Ints, classes: Groups, count: int) -> Ints:
    """Return (count,): the sum of the values of each class."""
    return np.bincount(classes, weights=values, minlength=count).astype(np.int64)
