from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.impostor_scores import all_scores
from unibct.evaluation import impostors as module
from unibct.evaluation import impostors as score_ranks
from unibct.evaluation import score_table
from unibct.evaluation.impostors import (
    ClassParts,
    HighestScores,
    Impostors,
    ScoreRanks,
    as_impostors,
    quantiles,
)
from unibct.evaluation.score_table import ScoreTable


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Several blocks, and collected scores that must be merged."""
    monkeypatch.setattr(score_table, "_SCORES_AT_ONCE", 100)
    monkeypatch.setattr(score_ranks, "_COLLECTED_AT_ONCE", 20)


def cosines():
    return np.random.default_rng(0).normal(0, 0.2, (60, 12)).clip(-1, 1).astype(np.float32)


SCORES = {
    "cosines": cosines,
    "ties": lambda: cosines().round(1),
    "all the same": lambda: np.zeros((60, 12)),
    "within one bin": lambda: 0.5 + 1e-6 * cosines().astype(np.float64),
    "beyond the bins": lambda: 40 * cosines(),
}


@pytest.fixture(params=SCORES)
def table(request):
    return ScoreTable(SCORES[request.param](), np.arange(60) % 12, np.arange(12))


def descending(table, chosen=None):
    """All impostor scores by a mask; with ``chosen``, both classes must be among them."""
    queries, entries = table.query_classes[:, None], table.entry_classes
    mask = queries != entries
    if chosen is not None:
        mask &= chosen[queries] & chosen[entries]
    return np.sort(table.scores[mask])[::-1]


def test_scores_at_ranks_equal_a_sort(table):
    want = descending(table)
    ranks = ScoreRanks(table)
    assert ranks.sizes.tolist() == [len(want)] == [660]
    for asked in (np.arange(660), np.array([659, 0, 17, 17, 300])):
        (found,) = ranks.at_ranks([asked])
        assert found.dtype == table.scores.dtype
        assert np.array_equal(found, want[asked])


def test_quantiles_of_each_part_equal_numpy_to_the_bit(table):
    groups = np.random.default_rng(1).permutation(12) % 3
    parts = ClassParts(groups, ~np.eye(3, dtype=bool))
    asked = [np.array([0, 0.013, 0.5, 0.77, 0.999]), np.array([0.2]), np.array([0.9, 0.1, 1.0])]
    for part, found in enumerate(quantiles(ScoreRanks(table, parts), asked)):
        want = descending(table, groups != part).astype(np.float64)
        assert np.array_equal(found, np.quantile(want, asked[part]))


def test_without_classes_of_entries_the_query_decides(table):
    groups = np.arange(12) % 3
    parts = ClassParts(groups, np.eye(3, dtype=bool))
    ranks = ScoreRanks(replace(table, entry_classes=None), parts)
    assert ranks.sizes.tolist() == [240] * 3
    asked = np.arange(240)
    found = ranks.at_ranks([asked[:0], asked, asked[:1]])
    want = np.sort(table.scores[table.query_classes % 3 == 1], axis=None)[::-1]
    assert np.array_equal(found[1], want)
    assert [len(part) for part in found] == [0, 240, 1]


def test_the_edges_enclose_the_ranks(table):
    want = descending(table)
    for first, last in ((0, 0), (0, 659), (100, 120)):
        low, high = ScoreRanks(table).edges(first, last)
        assert (want[first : last + 1] >= low).all()
        assert (want[first : last + 1] < high).all()
        assert np.isfinite(low)  # so that the -inf of mates is outside


CLASSES = 15


@pytest.fixture(params=[10_000, 40], ids=["all kept", "40 kept"])
def _kept(request, monkeypatch):
    """All scores in memory, and only the highest, so that the rest is read again."""
    monkeypatch.setattr(module, "_ALWAYS_KEPT", request.param)
    monkeypatch.setattr(score_table, "_SCORES_AT_ONCE", 100)


@pytest.fixture(params=[2, 5], ids=["many ties", "few ties"])
def arrays(request):
    """(scores, their classes) as arrays, and the scores, labels and entries that they come from."""
    rng = np.random.default_rng(2)
    scores = rng.normal(0, 0.3, (50, CLASSES)).round(request.param).astype(np.float32)
    labels = rng.integers(0, CLASSES - 1, 50)  # the last class has no query
    mask = labels[:, None] != np.arange(CLASSES)
    classes = np.broadcast_to(labels[:, None], mask.shape)[mask]
    return scores[mask], classes, ScoreTable(scores, labels, np.arange(CLASSES))


@pytest.fixture(params=["table", "list"])
def pairs(request, arrays, _kept):
    """(scores, classes, Impostors of the same pairs)."""
    scores, classes, table = arrays
    found = Impostors(table) if request.param == "table" else as_impostors(scores, classes)
    return scores, classes, found


def test_counts_and_scores_equal_arrays(pairs):
    scores, classes, found = pairs
    assert len(found) == len(scores) == 50 * 14
    assert np.array_equal(all_scores(found), scores)
    assert np.array_equal(found.class_counts(CLASSES), np.bincount(classes, minlength=CLASSES))


def test_ranks_equal_a_sort(pairs):
    scores, _, found = pairs
    want = np.sort(scores)[::-1]
    for asked in (np.arange(len(scores)), np.array([3, 0, 3]), np.array([39, 40, 41, 699])):
        assert np.array_equal(found.at_ranks(asked), want[asked])


def test_counts_above_equal_arrays(pairs):
    """One limit for all classes or one for each; far down, among the highest, at a score."""
    scores, classes, found = pairs
    own = np.random.default_rng(3).normal(0, 0.3, CLASSES)
    for limit in (own, own + 1.5, *(np.full(CLASSES, x) for x in (-np.inf, scores[0], 0.9, 9))):
        want = np.bincount(classes[scores > limit.astype(np.float32)[classes]], minlength=CLASSES)
        assert np.array_equal(found.counts_above(np.stack([limit, limit]))[1], want)


def test_counts_from_values_equal_arrays(pairs):
    scores, _, found = pairs
    values = np.concatenate([scores[::9], [-5, 0.123, 5]]).astype(np.float32)
    above, equal = found.counts_from(values)
    assert above.tolist() == [int((scores > value).sum()) for value in values]
    assert equal.tolist() == [int((scores == value).sum()) for value in values]


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (20, 40), (30, 90), (600, 700), (0, 700)])
def test_a_window_holds_the_pairs_between_two_ranks(pairs, start, stop):
    scores, classes, found = pairs
    window = found.window(start, stop, CLASSES)
    first = int(window.above.sum())
    end = first + len(window.scores)
    assert first <= start
    assert end >= stop
    assert np.array_equal(window.scores, np.sort(scores)[::-1][first:end])
    assert window.is_last == (end == 700)
    owned = window.above + np.bincount(window.classes, minlength=CLASSES)
    lowest = window.scores[-1]
    above = np.bincount(classes[scores > lowest], minlength=CLASSES)
    at_least = np.bincount(classes[scores >= lowest], minlength=CLASSES)
    assert (above <= owned).all()
    assert (owned <= at_least).all()


def test_only_the_highest_are_kept_whatever_the_order():
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(300, 10)).round(1)  # ties at the floor
    for order in (np.arange(300), np.argsort(scores.max(1)), np.argsort(-scores.max(1))):
        highest = HighestScores(70)
        for part in np.split(scores[order], 60):
            highest.add(part, np.zeros(len(part), dtype=int))
            assert sum(len(kept) for kept, _ in highest._waiting) <= 140
        kept, classes = highest.pairs()
        assert np.array_equal(np.sort(kept), np.sort(scores, axis=None)[-70:])
        assert len(classes) == 70
        assert highest.floor == kept.min()


def test_how_many_are_kept_has_a_limit():
    for size, limit in ((5, 5), (10**6, 10**6), (10**8, 4 * 10**6), (10**9, 2 * 10**7)):
        assert Impostors.highest_of(size).limit == limit
    assert Impostors.highest_of(10**11).limit == 2 * 10**7
