from dataclasses import replace

import numpy as np
import pytest

from unibct.evaluation import score_ranks, score_table
from unibct.evaluation.score_ranks import ClassParts, ScoreRanks, quantiles
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
    ranks = ScoreRanks(
        replace(table, entry_classes=None), ClassParts(groups, np.eye(3, dtype=bool))
    )
    assert ranks.sizes.tolist() == [240] * 3
    asked = np.arange(240)
    found = ranks.at_ranks([asked[:0], asked, asked[:1]])
    assert np.array_equal(
        found[1], np.sort(table.scores[table.query_classes % 3 == 1], axis=None)[::-1]
    )
    assert [len(part) for part in found] == [0, 240, 1]


def test_the_edges_enclose_the_ranks(table):
    want = descending(table)
    for first, last in ((0, 0), (0, 659), (100, 120)):
        low, high = ScoreRanks(table).edges(first, last)
        assert (want[first : last + 1] >= low).all()
        assert (want[first : last + 1] < high).all()
        assert np.isfinite(low)  # so that the -inf of mates is outside
