"""The bootstrap: metrics for classes of the queries that are drawn with replacement.

Classes are drawn because the images of a class resemble each other. Drawing images or pairs would
give intervals that are too narrow. The gallery does not change. Tests that are sampled with the
same draws can be compared pairwise (docs/decisions/0004-evaluation.md).
"""

import copy
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.errors import UserError
from unibct.evaluation.identification import OpenSearch
from unibct.evaluation.impostors import Window
from unibct.evaluation.score_table import Groups
from unibct.evaluation.search_test import ScoredPairs, SearchTest

REPEATS = 2000

_BLOCK = 1024  # smallest number of sorted impostors in a block of cumulated counts
_WEIGHTS_AT_ONCE = 300_000  # more do not fit into a processor's cache
_MOST_KEPT = 1 << 27  # bytes of draws: all of them up to 67,000 classes
_WIDEST_WINDOW = 20_000_000  # impostors among which thresholds are searched at once
_MOST_FREEDOM = 100_000  # beyond, Student's t is the normal distribution in every shown digit


class ClassDraws:
    """(repeats, classes) how often each class counts, read some repeats at a time.

    As many draws are kept as fit into a fixed memory. The others are drawn again, with the same
    numbers, whenever they are read.
    """

    def __init__(
        self,
        first: Ints | NDArray[np.uint8],
        *,
        present: NDArray[np.bool_] | None = None,
        repeats: int | None = None,
        generator: np.random.Generator | None = None,
    ) -> None:
        """Take the (n, drawn classes) draws of the first repeats, and what draws the others.

        ``present`` is (classes,): which are drawn; by default all. There are n repeats by default;
        of more, the next numbers of ``generator`` draw those from n on.
        """
        # One class of thousands is not drawn 256 times.
        self._first = first.astype(np.uint8, copy=False)
        self._columns = slice(None) if present is None or present.all() else np.flatnonzero(present)
        self._generator = generator
        self.drawn = int(self._first[0].sum())
        classes = first.shape[1] if present is None else len(present)
        self.shape = (len(first) if repeats is None else repeats, classes)

    def parts(self, columns: int, chosen: Ints | None = None) -> Iterator[tuple[slice, Floats]]:
        """Yield places in ``chosen``, and (places, classes) how often each class counts there.

        ``chosen`` are repeats in ascending order, by default all. The caller makes (places,
        columns) arrays of them, which are to stay small.
        """
        repeats, classes = self.shape
        chosen = np.arange(repeats) if chosen is None else chosen
        step = max(1, _WEIGHTS_AT_ONCE // max(columns, classes))
        for start, counts in self._blocks(max(1, _WEIGHTS_AT_ONCE // classes)):
            begin, end = np.searchsorted(chosen, [start, start + len(counts)]).tolist()
            for first in range(begin, end, step):
                places = slice(first, min(first + step, end))
                weights = np.zeros((places.stop - first, classes))
                weights[:, self._columns] = counts[chosen[places] - start]
                yield places, weights

    def sums(self, values: Floats) -> Floats:
        """Return (repeats,) or (repeats, n): the sums of (classes,) or (classes, n) values."""
        sums = np.empty((self.shape[0], *values.shape[1:]))
        for repeats, weights in self.parts(1):
            sums[repeats] = weights @ values
        return sums

    def _blocks(self, step: int) -> Iterator[tuple[int, Ints | NDArray[np.uint8]]]:
        """Yield some repeats at a time: the first of them, and (n, drawn classes) the draws."""
        for start in range(0, len(self._first), step):
            yield start, self._first[start : start + step]
        generator, repeats = copy.deepcopy(self._generator), self.shape[0]
        for start in range(len(self._first), repeats, step):
            assert generator is not None, "it draws what is not kept"
            yield start, _drawn(generator, self.drawn, min(step, repeats - start))


def _drawn(generator: np.random.Generator, classes: int, repeats: int) -> Ints:
    return generator.multinomial(classes, np.full(classes, 1 / classes), size=repeats)


def class_draws(test: SearchTest, *, seed: int = 0, repeats: int = REPEATS) -> ClassDraws:
    """Draw the classes of a test's queries with replacement.

    The same seed gives the same draws for every test of the same queries. A class that has
    neither a query nor a pair is never drawn.
    """
    if repeats < 1:
        raise UserError(f"repeats must be at least 1, not {repeats}")
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    present = test.pairs.impostor.class_counts(test.classes) > 0
    present[test.query_classes] = True
    present[test.pairs.genuine_classes] = True
    drawn = int(present.sum())
    generator = np.random.default_rng([seed, 1])
    first = np.empty((max(1, min(repeats, _MOST_KEPT // drawn)), drawn), dtype=np.uint8)
    step = max(1, _WEIGHTS_AT_ONCE // drawn)
    for start in range(0, len(first), step):
        part = first[start : start + step]
        part[:] = _drawn(generator, drawn, len(part))
    return ClassDraws(first, present=present, repeats=repeats, generator=generator)


def sampled_mean(values: Floats, classes: Groups, draws: ClassDraws) -> Floats:
    """Return (repeats,): the mean of (queries,) values, where (queries,) classes count as drawn."""
    sums = np.bincount(classes, weights=values, minlength=draws.shape[1])
    return sampled_share(sums, np.bincount(classes, minlength=draws.shape[1]), draws)


def sampled_share(part: Floats | Ints, whole: Floats | Ints, draws: ClassDraws) -> Floats:
    """Return (repeats,): part / whole, which are (classes,) sums, where classes count as drawn."""
    return _share(*draws.sums(np.stack([part, whole], axis=1).astype(np.float64)).T)


def sampled_tar(pairs: ScoredPairs, draws: ClassDraws, far: float) -> Floats:
    """Return (repeats,): the TAR at FAR where the pairs of a class count as it is drawn."""
    thresholds = sampled_thresholds(pairs, draws, far)
    order = np.argsort(pairs.genuine, kind="stable")
    ascending, classes = pairs.genuine[order], pairs.genuine_classes[order]
    genuine = np.bincount(pairs.genuine_classes, minlength=draws.shape[1]).astype(np.float64)
    places = np.searchsorted(ascending, thresholds.astype(ascending.dtype), side="right")
    accepted = np.empty(len(places))
    for repeats, weights in draws.parts(1):
        accepted[repeats] = [
            float(row[classes[place:]].sum())
            for row, place in zip(weights, places[repeats], strict=True)
        ]
    return _share(accepted, draws.sums(genuine))


def sampled_tpir(searches: Iterable[OpenSearch], draws: ClassDraws, fpir: float) -> Floats:
    """Return (repeats,): the TPIR at FPIR, averaged over the galleries, for drawn classes.

    A search must know the classes of its queries.
    """
    return np.mean([_gallery_tpir(search, draws, fpir) for search in searches], axis=0)


def _gallery_tpir(search: OpenSearch, draws: ClassDraws, fpir: float) -> Floats:
    assert search.mate_classes is not None
    assert search.unmated_classes is not None
    order = np.argsort(-search.unmated, kind="stable")
    scores, classes = search.unmated[order], search.unmated_classes[order]
    rates = np.empty(draws.shape[0])
    for repeats, part in draws.parts(max(len(scores), len(search.mate))):
        counted = np.cumsum(part[:, classes], axis=1)
        place = np.maximum((counted[:, -1] * fpir + 1e-9).astype(np.int64) - 1, 0)
        first = (counted <= place[:, None]).sum(axis=1)  # the score at that place
        thresholds = np.append(scores, -np.inf)[first]
        hits = (search.mate > thresholds[:, None]) & (search.mate > search.other)
        weights = part[:, search.mate_classes]
        rates[repeats] = _share((hits * weights).sum(1), weights.sum(1))
    return rates


def sampled_thresholds(pairs: ScoredPairs, draws: ClassDraws, far: float) -> Floats:
    """Return (repeats,): the strict thresholds at a FAR where pairs count as in ``sampled_tar``.

    They are searched among the impostors whose ranks are near the one that the FAR allows, and
    further up or down for the repeats whose threshold is not among those.
    """
    total, (count, classes) = len(pairs.impostor), draws.shape
    allowed = far * draws.sums(pairs.impostor.class_counts(classes).astype(np.float64)) + 1e-9
    thresholds = np.full(count, -np.inf)
    middle = far * total
    width = min(int(2 * middle) + 1024, _WIDEST_WINDOW)
    start = max(0, int(middle) - width // 2)
    pending = [(start, min(total, start + width), np.arange(count))] if total else []
    while pending:
        start, stop, repeats = pending.pop()
        window = pairs.impostor.window(start, stop, classes)
        above = (draws.sums(window.above.astype(np.float64)) > allowed)[repeats]
        inside = repeats[~above]
        refused = _first_refused(window, draws, inside, allowed)
        is_set = refused < len(window.scores)
        thresholds[inside[is_set]] = window.scores[refused[is_set]]
        if above.any():
            pending.append((max(0, start - width), start, repeats[above]))
        if not (is_set.all() or window.is_last):
            pending.append((stop, min(total, stop + 2 * width), inside[~is_set]))
    return thresholds


def _first_refused(window: Window, draws: ClassDraws, chosen: Ints, allowed: Floats) -> Ints:
    """Return (chosen,): the place in a window of the first pair that a repeat must refuse.

    It is the first that takes the passed pairs over the limit. A repeat does not go through all
    pairs: cumulated counts per class give the block of pairs in which this happens; then only
    that block is searched.
    """
    classes, count = int(draws.shape[1]), len(window.scores)
    size = min(max(_BLOCK, 8 * classes), count)  # so that the counts need little memory
    blocks = -(-count // size)
    counts = [
        np.bincount(window.classes[start : start + size], minlength=classes)
        for start in range(0, count, size)
    ]
    counts_to_end = window.above + np.cumsum(counts, axis=0).astype(np.float64)
    first_refused = np.empty(len(chosen), dtype=np.int64)
    for places, part in draws.parts(size, chosen):
        repeat = np.arange(len(part))
        limit = allowed[chosen[places], None]
        before = part @ window.above.astype(np.float64)
        passed = np.column_stack([before, part @ counts_to_end.T])  # before each block
        block = np.minimum((passed[:, 1:] <= limit).sum(axis=1), blocks - 1)
        place = block[:, None] * size + np.arange(size)
        is_pair = place < count
        steps = part[repeat[:, None], window.classes[np.minimum(place, count - 1)]]
        within = passed[repeat, block][:, None] + np.cumsum(steps, axis=1)
        first_refused[places] = block * size + ((within <= limit) & is_pair).sum(axis=1)
    return first_refused


def _share(part: Floats, whole: Floats) -> Floats:
    """Divide; return zero for a repeat in which there is nothing to count."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


@lru_cache
def t_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t distribution with ν ≥ 1 degrees of freedom.

    It says how much wider an interval is if its variance is itself estimated from few. With
    t = √ν·tan θ the density is proportional to cos(θ)^(ν−1), which is summed up to the probability.
    """
    freedom = min(freedom, _MOST_FREEDOM)
    theta = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    density = np.cos(theta).clip(0) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(np.sqrt(freedom) * np.tan(np.interp(probability, below / below[-1], theta)))
