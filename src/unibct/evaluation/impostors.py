"""The scores of all pairs of different classes, of which only the highest are kept.

Few questions go beyond the highest. They are answered exactly, by further passes over the scores,
of which there may be more than memory holds.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.evaluation.score_table import Groups, ScoreTable

_ALWAYS_KEPT = 4_000_000  # that many are kept, if there are enough
_MOST_KEPT = 20_000_000
_KEPT_SHARE = 0.02  # of a large number: thresholds are set at false accept rates up to 1e-2


class HighestScores:
    """Collects the highest of many scores, and the class of each."""

    def __init__(self, limit: int) -> None:
        """Begin with none; keep at most ``limit``."""
        self.limit = limit
        self.floor = -np.inf  # no score that was left out is above this
        self._waiting: list[tuple[Floats, Groups]] = []
        self._count = 0

    def add(self, scores: Floats, classes: Groups) -> None:
        """Take (queries, entries) scores, in which -inf is no score, of queries of some classes."""
        above = scores > self.floor
        counts = np.count_nonzero(above, axis=1)
        self._waiting.append((scores[above], np.repeat(classes.astype(np.int32), counts)))
        self._count += int(counts.sum())
        if self._count > 2 * self.limit:
            self.pairs()

    def pairs(self) -> tuple[Floats, Groups]:
        """Leave out all but the highest scores; return them, in no order, and their classes."""
        parts = self._waiting or [(np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32))]
        scores, classes = (np.concatenate(side) for side in zip(*parts, strict=True))
        if len(scores) > self.limit:
            self.floor = float(np.partition(scores, -self.limit)[-self.limit])
            is_highest = scores > self.floor
            tied = np.flatnonzero(scores == self.floor)
            is_highest[tied[: self.limit - int(is_highest.sum())]] = True
            scores, classes = scores[is_highest], classes[is_highest]
        self._waiting, self._count = [(scores, classes)], len(scores)
        return scores, classes


class Window(NamedTuple):
    """The pairs between two ranks."""

    scores: Floats  # in descending order
    classes: Groups  # the query's class of each
    above: Ints  # (classes,) how many pairs of each class come before the window
    is_last: bool  # whether no pair comes after it


class Impostors:
    """Pairs of different classes."""

    def __init__(self, table: ScoreTable, highest: HighestScores | None = None) -> None:
        """Take the table of scores and, if a pass has found them already, its highest."""
        self.table = table
        self._pair_counts = table.impostor_counts()
        self._count = int(self._pair_counts.sum())
        self._given_highest = highest

    def __len__(self) -> int:
        """How many pairs there are."""
        return self._count

    @staticmethod
    def highest_of(pairs: int) -> HighestScores:
        """Return what collects as many of the pairs as are kept."""
        share = min(int(_KEPT_SHARE * pairs), _MOST_KEPT)
        return HighestScores(max(1, min(pairs, max(_ALWAYS_KEPT, share))))

    @cached_property
    def _highest(self) -> tuple[Floats, Groups]:
        highest = self._given_highest
        if highest is None:
            highest = self.highest_of(len(self))
            for block in self.table.blocks():
                highest.add(block.others, block.classes)
        return highest.pairs()

    @cached_property
    def _ranks(self) -> "ScoreRanks":
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

        ``limits`` are (limits, classes) too.
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

        ``classes`` is how many there are.
        """
        scores, owners = self._highest
        above = np.zeros(classes, dtype=np.int64)
        if stop <= len(scores):
            highest = np.argpartition(scores, len(scores) - stop)[len(scores) - stop :]
            scores, owners = scores[highest], owners[highest]
        else:
            low, high = self._ranks.edges(start, stop - 1)
            collected = HighestScores(len(self))
            for block in self.table.blocks():
                is_above = block.others >= high
                above += _sums(np.count_nonzero(is_above, axis=1), block.classes, classes)
                inside = np.where((block.others >= low) & ~is_above, block.others, -np.inf)
                collected.add(inside, block.classes)
            scores, owners = collected.pairs()
        order = np.argsort(-scores, kind="stable")
        is_last = len(scores) + int(above.sum()) == len(self)
        return Window(scores[order], owners[order], above, is_last)


def as_impostors(scores: Floats | Impostors, classes: Groups | None = None) -> Impostors:
    """Return the impostors of a list of pairs: (pairs,) scores and the class of each one's query.

    By default all are of one class.
    """
    if isinstance(scores, Impostors):
        return scores
    owners: NDArray[np.integer] = np.zeros(len(scores), np.int32) if classes is None else classes
    return Impostors(ScoreTable(np.asarray(scores)[:, None], owners))


def _sums(values: Ints, classes: Groups, count: int) -> Ints:
    """Return (count,): the sum of the values of each class."""
    return np.bincount(classes, weights=values, minlength=count).astype(np.int64)


# Exact order statistics of all scores. The first pass counts them in narrow bins. The counts tell
# in which bin the score of a rank lies. The second pass collects the scores in those bins, which
# are few.

_HALF = 1 << 15  # bins for the scores from 0 to 1; a power of two makes the edges exact
_BINS = 2 * _HALF
_COLLECTED_AT_ONCE = 20_000_000


class ClassParts(NamedTuple):
    """Overlapping parts of the classes: each part is made of some groups of classes.

    A score belongs to a part if the classes of its query and of its entry do. Where the class of an
    entry is not known, the query's decides.
    """

    groups: Groups  # (classes,) the group of each class, 0…G-1
    members: NDArray[np.bool_]  # (parts, G) whether a part contains a group


class ScoreRanks:
    """The impostor scores of each part of the classes, by their rank from the highest down."""

    def __init__(self, table: ScoreTable, parts: ClassParts | None = None) -> None:
        """Count the scores in bins, a pass over all of them; without parts they are one."""
        self._table = table
        self._query_groups = np.zeros(len(table.query_classes), dtype=np.int64)
        self._entry_groups = np.zeros(table.scores.shape[1], dtype=np.int64)
        query_members = entry_members = np.ones((1, 1), dtype=bool)
        if parts is not None:
            self._query_groups = parts.groups[table.query_classes].astype(np.int64)
            query_members = parts.members
            entry_members = np.ones((len(query_members), 1), dtype=bool)
            if table.entry_classes is not None:
                self._entry_groups = parts.groups[table.entry_classes].astype(np.int64)
                entry_members = parts.members
        self._entry_group_count = entry_members.shape[1]
        # A cell holds the pairs of one group of queries with one group of entries.
        self._members = (query_members[:, :, None] & entry_members[:, None, :]).reshape(
            len(query_members), -1
        )
        self.counts = self._members.astype(np.int64) @ self._cell_counts()

    @property
    def sizes(self) -> Ints:
        """(parts,) how many scores each has."""
        return self.counts.sum(axis=1)

    def at_ranks(self, ranks: Sequence[Ints]) -> list[Floats]:
        """Return the scores at some ranks of each part; rank 0 is the highest score."""
        places = [_bins_of_ranks(c, r) for c, r in zip(self.counts, ranks, strict=True)]
        wanted = np.zeros(_BINS, dtype=bool)
        for bins in places:
            wanted[bins] = True
        cells, scores, score_counts = self._collect(wanted)
        scores_by_part: list[Floats] = []
        for part, bins in enumerate(places):
            chosen = self._members[part, cells]
            values, counts = scores[chosen], score_counts[chosen]
            order = np.argsort(-values, kind="stable")
            # Among the collected scores, a rank is lower by what lies above and was left out.
            left_out = np.where(wanted, 0, self.counts[part])
            left_out_above = (np.cumsum(left_out[::-1])[::-1] - left_out)[bins]
            rest = ranks[part] - left_out_above
            scores_by_part.append(
                values[order][np.searchsorted(np.cumsum(counts[order]), rest, side="right")]
            )
        return scores_by_part

    def edges(self, highest_rank: int, lowest_rank: int) -> tuple[float, float]:
        """Return (low, high): the first part's scores of these ranks are in [low, high)."""
        top, bottom = _bins_of_ranks(self.counts[0], np.array([highest_rank, lowest_rank]))
        return _edges(int(bottom), int(top))

    def _cell_counts(self) -> Ints:
        """Return (cells, bins)."""
        cells = self._members.shape[1]
        counts = np.zeros((cells, _BINS), dtype=np.int64)
        entries: Ints = np.arange(len(self._entry_groups))
        for block in self._table.blocks():
            bins = _bins(block.others)
            if cells > 1:
                bins += self._cells(block.queries[:, None], entries) * _BINS
            counts += np.bincount(bins.ravel(), minlength=counts.size).reshape(counts.shape)
            # Mates are -inf in a block, which falls into the lowest bin.
            mate_cells = self._cells(block.queries[block.mate_rows], block.mate_entries)
            counts[:, 0] -= np.bincount(mate_cells, minlength=cells)
        return counts

    def _cells(self, queries: Ints, entries: Ints) -> Ints:
        """Return the cell of each pair."""
        first_cells = self._query_groups[queries] * self._entry_group_count
        return first_cells + self._entry_groups[entries]

    def _collect(self, wanted: NDArray[np.bool_]) -> tuple[Ints, Floats, Ints]:
        """Return the scores in the wanted bins, with their cells and how often each is there."""
        no_cells = np.zeros(0, dtype=np.int64)
        collected = no_cells, np.zeros(0, dtype=np.float32), no_cells
        waiting: list[tuple[Ints, Floats, Ints]] = []
        bins = np.flatnonzero(wanted)
        is_one_range = len(bins) > 0 and bins[-1] - bins[0] == len(bins) - 1
        for block in self._table.blocks():
            if is_one_range:  # then comparing is faster than finding every score's bin
                low, high = _edges(int(bins[0]), int(bins[-1]))
                chosen = (block.others >= low) & (block.others < high)
            else:
                chosen = wanted[_bins(block.others)] & (block.others > -np.inf)
            rows, entries = np.nonzero(chosen)
            cells = self._cells(block.queries[rows], entries)
            waiting.append((cells, block.others[rows, entries], np.ones_like(cells)))
            many = max(_COLLECTED_AT_ONCE, len(collected[0]))
            if sum(len(part[0]) for part in waiting) > many:
                collected, waiting = _merged([collected, *waiting]), []
        return _merged([collected, *waiting])


def quantiles(ranks: ScoreRanks, probabilities: Sequence[Floats]) -> list[NDArray[np.float64]]:
    """Return the quantiles of each part, interpolated between ranks as ``numpy.quantile`` does."""
    sizes = ranks.sizes.tolist()
    places = [(size - 1) * q for size, q in zip(sizes, probabilities, strict=True)]
    before = [np.floor(place).astype(np.int64) for place in places]
    both = [
        size - 1 - np.concatenate([low, np.minimum(low + 1, size - 1)])
        for size, low in zip(sizes, before, strict=True)
    ]
    values_by_part: list[NDArray[np.float64]] = []
    for scores, place, low in zip(ranks.at_ranks(both), places, before, strict=True):
        first, second = scores.astype(np.float64).reshape(2, -1)
        share, step = place - low, second - first
        nearer_first: NDArray[np.float64] = first + step * share
        values_by_part.append(np.where(share < 0.5, nearer_first, second - step * (1 - share)))
    return values_by_part


def _merged(parts: list[tuple[Ints, Floats, Ints]]) -> tuple[Ints, Floats, Ints]:
    """Return cells, scores and counts in which equal scores of a cell stand once."""
    full = [part for part in parts if len(part[0])]
    if not full:
        return parts[0]
    cells, values, counts = (np.concatenate(side) for side in zip(*full, strict=True))
    order = np.lexsort((values, cells))
    cells, values = cells[order], values[order]
    is_first = np.ones(len(values), dtype=bool)
    is_first[1:] = (np.diff(cells) != 0) | (values[1:] != values[:-1])
    starts = np.flatnonzero(is_first)
    return cells[starts], values[starts], np.add.reduceat(counts[order], starts)


def _bins(scores: Floats) -> Ints:
    """Return the bin of each score, the higher the score the higher the bin."""
    scaled = np.floor(scores * _HALF)
    np.clip(scaled, -_HALF, _HALF - 1, out=scaled)
    bins = scaled.astype(np.int64)
    bins += _HALF
    return bins


def _edges(lowest: int, highest: int) -> tuple[float, float]:
    """Return (low, high): the scores of these bins and of those between are in [low, high)."""
    low = (lowest - _HALF) / _HALF if lowest > 0 else float(np.finfo(np.float32).min)
    high = (highest + 1 - _HALF) / _HALF if highest < _BINS - 1 else np.inf
    return low, high


def _bins_of_ranks(counts: Ints, ranks: Ints) -> Ints:
    """Return the bin in which the score of each rank lies."""
    return _BINS - 1 - np.searchsorted(np.cumsum(counts[::-1]), ranks, side="right")
