"""The bootstrap: metrics for classes of the queries that are drawn with replacement.

Classes are drawn because the images of a class resemble each other. Drawing images or pairs would
give intervals that are too narrow. The gallery does not change. Tests that are sampled with the
same draws can be compared pairwise (docs/decisions/0004-evaluation.md).
"""

from collections.abc import Iterable

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.errors import UserError
from unibct.evaluation.impostors import Window
from unibct.evaluation.metrics.open_set import OpenSearch
from unibct.evaluation.score_table import Groups
from unibct.evaluation.search_test import ScoredPairs, SearchTest

REPEATS = 2000

_BLOCK = 1024  # smallest number of sorted impostors in a block of cumulated counts
_REPEATS_AT_ONCE = 100
_WIDEST_WINDOW = 20_000_000  # impostors among which thresholds are searched at once


def class_draws(test: SearchTest, *, seed: int = 0, repeats: int = REPEATS) -> Ints:
    """Draw the classes of a test's queries with replacement.

    The same seed gives the same draws for every test of the same queries.

    Returns:
        (repeats, classes) how often each class is drawn. A class that has neither a query nor a
        pair is never drawn.
    """
    if repeats < 1:
        raise UserError(f"repeats must be at least 1, not {repeats}")
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    present = np.zeros(test.classes, dtype=bool)
    for classes in (test.query_classes, test.pairs.genuine_classes):
        present |= np.bincount(classes, minlength=test.classes) > 0
    present |= test.pairs.impostor.class_counts(test.classes) > 0
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
    sums = np.bincount(classes, weights=values, minlength=draws.shape[1])
    return sampled_share(sums, np.bincount(classes, minlength=draws.shape[1]), draws)


def sampled_share(part: Floats | Ints, whole: Floats | Ints, draws: Ints) -> Floats:
    """Return (repeats,): part / whole where class c counts ``draws[:, c]`` times.

    Args:
        part: (classes,) sums over each class.
        whole: (classes,) counts of each class.
        draws: (repeats, classes).
    """
    weights = draws.astype(np.float64)
    return _share(weights @ part.astype(np.float64), weights @ whole.astype(np.float64))


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

    They are searched among the impostors whose ranks are near the one that the FAR allows, and
    further up or down for the repeats whose threshold is not among those.
    """
    total, classes = len(pairs.impostor), int(draws.shape[1])
    allowed = far * (draws @ pairs.impostor.class_counts(classes).astype(np.float64)) + 1e-9
    thresholds = np.full(len(draws), -np.inf)
    middle = far * total
    width = min(int(2 * middle) + 1024, _WIDEST_WINDOW)
    start = max(0, int(middle) - width // 2)
    pending = [(start, min(total, start + width), np.arange(len(draws)))] if total else []
    while pending:
        start, stop, repeats = pending.pop()
        window = pairs.impostor.window(start, stop, classes)
        above = draws[repeats] @ window.above.astype(np.float64) > allowed[repeats]
        inside = repeats[~above]
        refused = _first_refused(window, draws[inside], allowed[inside])
        is_set = refused < len(window.scores)
        thresholds[inside[is_set]] = window.scores[refused[is_set]]
        if above.any():
            pending.append((max(0, start - width), start, repeats[above]))
        if not (is_set.all() or window.is_last):
            pending.append((stop, min(total, stop + 2 * width), inside[~is_set]))
    return thresholds


def _first_refused(window: Window, draws: Ints, allowed: Floats) -> Ints:
    """Return (repeats,): the place in a window of the first pair that must be refused.

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
    first_refused = np.empty(len(draws), dtype=np.int64)
    for start in range(0, len(draws), _REPEATS_AT_ONCE):
        part = draws[start : start + _REPEATS_AT_ONCE].astype(np.float64)
        repeat = np.arange(len(part))
        limit = allowed[start : start + len(part), None]
        before = part @ window.above.astype(np.float64)
        passed = np.column_stack([before, part @ counts_to_end.T])  # before each block
        block = np.minimum((passed[:, 1:] <= limit).sum(axis=1), blocks - 1)
        place = block[:, None] * size + np.arange(size)
        is_pair = place < count
        steps = part[repeat[:, None], window.classes[np.minimum(place, count - 1)]]
        within = passed[repeat, block][:, None] + np.cumsum(steps, axis=1)
        first_refused[start : start + len(part)] = block * size + ((within <= limit) & is_pair).sum(
            axis=1
        )
    return first_refused


def _share(part: Floats, whole: Floats) -> Floats:
    """Divide; return zero for a repeat in which there is nothing to count."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
