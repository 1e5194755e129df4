"""The bootstrap: metrics for classes of the queries that are drawn with replacement.

Classes are drawn because the images of a class resemble each other. Drawing images or pairs would
give intervals that are too narrow. The gallery does not change. Tests that are sampled with the
same draws can be compared pairwise (docs/decisions/0004-evaluation.md).
"""

from collections.abc import Iterable

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.evaluation.metrics.open_set import OpenSearch
from unibct.evaluation.search_test import Groups, ScoredPairs, SearchTest

REPEATS = 2000

_ENTRIES_AT_ONCE = 4_000_000
_BLOCK = 1024  # smallest number of sorted impostors in a block of cumulated counts
_REPEATS_AT_ONCE = 100
# Up to this FAR it is faster to look at the highest impostors only: measured by
# measurements/bootstrap_ways.py.
_SMALL_FAR = 0.004


def class_draws(test: SearchTest, *, seed: int = 0, repeats: int = REPEATS) -> Ints:
    """Draw the classes of a test's queries with replacement.

    The same seed gives the same draws for every test of the same queries.

    Returns:
        (repeats, classes) how often each class is drawn. A class that has neither a query nor a
        pair is never drawn.
    """
    present = np.zeros(test.classes, dtype=bool)
    for classes in (test.query_classes, test.pairs.genuine_classes, test.pairs.impostor_classes):
        present |= np.bincount(classes, minlength=test.classes) > 0
    drawn = int(present.sum())
    draws = np.zeros((repeats, test.classes), dtype=np.int64)
    draws[:, present] = np.random.default_rng([seed, 1]).multinomial(
        drawn, np.full(drawn, 1 / drawn), size=repeats
    )
    return draws


def sampled_mean(values: Floats, classes: Groups, draws: Ints) -> Floats:
    """Return (repeats,): the mean of ``values`` where class c counts ``draws[:, c]`` times.

    Args:
        values: (queries,) one number for each query.
        classes: (queries,) the class of each.
        draws: (repeats, classes).
    """
    sums = np.bincount(classes, weights=values, minlength=draws.shape[1]).astype(np.float64)
    counts = np.bincount(classes, minlength=draws.shape[1]).astype(np.float64)
    weights = draws.astype(np.float64)
    return _share(weights @ sums, weights @ counts)


def sampled_tar(pairs: ScoredPairs, draws: Ints, far: float) -> Floats:
    """Return (repeats,): the TAR at FAR where the pairs of class c count ``draws[:, c]`` times.

    Args:
        pairs: the scores.
        draws: (repeats, classes).
        far: false accept rate.
    """
    thresholds = sampled_thresholds(pairs, draws, far)
    order = np.argsort(pairs.genuine, kind="stable")
    ascending, classes = pairs.genuine[order], pairs.genuine_classes[order]
    genuine = np.bincount(pairs.genuine_classes, minlength=draws.shape[1]).astype(np.float64)
    places = np.searchsorted(ascending, thresholds.astype(ascending.dtype), side="right")
    accepted = np.array(
        [float(row[classes[place:]].sum()) for row, place in zip(draws, places, strict=True)]
    )
    return _share(accepted, draws @ genuine)


def sampled_tpir(searches: Iterable[OpenSearch], draws: Ints, fpir: float) -> Floats:
    """Return (repeats,): the TPIR at FPIR, averaged over the galleries, for drawn classes.

    A search must know the classes of its queries.
    """
    return np.mean([_gallery_tpir(search, draws, fpir) for search in searches], axis=0)


def _gallery_tpir(search: OpenSearch, draws: Ints, fpir: float) -> Floats:
    assert search.mate_classes is not None
    assert search.unmated_classes is not None
    order = np.argsort(-search.unmated, kind="stable")
    scores, classes = search.unmated[order], search.unmated_classes[order]
    rates = np.empty(len(draws))
    for start in range(0, len(draws), _REPEATS_AT_ONCE):
        part = draws[start : start + _REPEATS_AT_ONCE].astype(np.float64)
        counted = np.cumsum(part[:, classes], axis=1)
        place = np.maximum((counted[:, -1] * fpir + 1e-9).astype(np.int64) - 1, 0)
        first = (counted <= place[:, None]).sum(axis=1)  # the score at that place
        thresholds = np.append(scores, -np.inf)[first]
        hits = (search.mate > thresholds[:, None]) & (search.mate > search.other)
        weights = part[:, search.mate_classes]
        rates[start : start + len(part)] = _share((hits * weights).sum(1), weights.sum(1))
    return rates


def sampled_thresholds(pairs: ScoredPairs, draws: Ints, far: float) -> Floats:
    """Return (repeats,): the strict thresholds at a FAR where pairs count as in ``sampled_tar``.

    If few impostors may pass, the thresholds are searched among the highest impostors only, so
    that not all of them must be sorted; otherwise among all of them. Both ways give the same
    numbers.
    """
    find = _thresholds_among_highest if far <= _SMALL_FAR else _thresholds_among_all
    return find(pairs, draws, far)


def _allowed(pairs: ScoredPairs, draws: Ints, far: float) -> Floats:
    """Return (repeats,): how many impostor pairs may pass."""
    impostors = np.bincount(pairs.impostor_classes, minlength=draws.shape[1]).astype(np.float64)
    return far * (draws @ impostors) + 1e-9


def _thresholds_among_highest(pairs: ScoredPairs, draws: Ints, far: float) -> Floats:
    """Find each repeat's threshold among the highest impostors.

    It begins with about twice as many impostors as may pass, and doubles their number as long as
    all of them pass in some repeat.
    """
    allowed = _allowed(pairs, draws, far)
    total = len(pairs.impostor)
    count = min(total, int(2 * far * total) + 1024)
    thresholds = np.empty(len(draws))
    unset = np.arange(len(draws))
    while len(unset):
        highest = _highest(pairs.impostor, count)
        scores, classes = pairs.impostor[highest], pairs.impostor_classes[highest]
        if count == total:
            scores = np.append(scores, -np.inf)
        size = max(1, _ENTRIES_AT_ONCE // count)
        left: list[Ints] = []
        for start in range(0, len(unset), size):
            repeats = unset[start : start + size]
            passed = np.cumsum(draws[repeats].astype(np.float64)[:, classes], axis=1)
            # The first impostor that takes the passed pairs over the limit must be refused.
            refused = (passed <= allowed[repeats, None]).sum(axis=1)
            is_set = refused < len(scores)
            thresholds[repeats[is_set]] = scores[refused[is_set]]
            left.append(repeats[~is_set])
        unset = np.concatenate(left) if count < total else unset[:0]
        count = min(total, 2 * count)
    return thresholds


def _thresholds_among_all(pairs: ScoredPairs, draws: Ints, far: float) -> Floats:
    """Find each repeat's threshold among all impostors, sorted once.

    A repeat does not go through all of them. Cumulated counts per class give the block of sorted
    impostors in which the number of passed pairs exceeds the limit; then only that block is
    searched.
    """
    classes = int(draws.shape[1])
    order = np.argsort(-pairs.impostor, kind="stable")
    scores, impostor_classes = pairs.impostor[order], pairs.impostor_classes[order]
    size = max(_BLOCK, 8 * classes)  # so that the table of counts stays smaller than the scores
    blocks = -(-len(scores) // size)
    cell = np.arange(len(scores)) // size * classes + impostor_classes
    counts = np.bincount(cell, minlength=blocks * classes).reshape(blocks, classes)
    counts_to_end = np.cumsum(counts, axis=0).astype(np.float64)
    limits = _allowed(pairs, draws, far)
    thresholds = np.empty(len(draws))
    for start in range(0, len(draws), _REPEATS_AT_ONCE):
        part = draws[start : start + _REPEATS_AT_ONCE].astype(np.float64)
        repeat = np.arange(len(part))
        allowed = limits[start : start + len(part), None]
        passed = np.pad(part @ counts_to_end.T, ((0, 0), (1, 0)))  # before each block
        block = np.minimum((passed[:, 1:] <= allowed).sum(axis=1), blocks - 1)
        place = block[:, None] * size + np.arange(size)
        inside = place < len(scores)
        steps = part[repeat[:, None], impostor_classes[np.minimum(place, len(scores) - 1)]]
        within = passed[repeat, block][:, None] + np.cumsum(steps, axis=1)
        first_refused = block * size + ((within <= allowed) & inside).sum(axis=1)
        thresholds[start : start + len(part)] = np.append(scores, -np.inf)[first_refused]
    return thresholds


def _highest(scores: Floats, count: int) -> Ints:
    """Return the places of the ``count`` highest scores, in descending order."""
    highest = np.argpartition(scores, len(scores) - count)[len(scores) - count :]
    return highest[np.argsort(-scores[highest], kind="stable")]


def _share(part: Floats, whole: Floats) -> Floats:
    """Divide; return zero for a repeat in which there is nothing to count."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
