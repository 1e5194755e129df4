import numpy as np
import pytest

from unibct.arrays import normalized
from unibct.evaluation import score_table
from unibct.evaluation.score_table import NormalizedRows, ProductScores, ScoreTable, mate_places


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(score_table, "_SCORES_AT_ONCE", 35)


def product_scores():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 6)).astype(np.float32)
    rows = rng.permutation(40)[:23]
    gallery = normalized(rng.normal(size=(7, 6)).astype(np.float32))
    return ProductScores(NormalizedRows(vectors, rows), gallery), vectors[rows], gallery


@pytest.mark.usefixtures("_small_blocks")
def test_the_blocks_hold_every_score_once():
    scores, query, gallery = product_scores()
    labels, entries = np.arange(23) % 4, np.array([0, 1, 2, 3, 0, 1, 0])
    want = query / np.linalg.norm(query, axis=1, keepdims=True) @ gallery.T
    blocks = list(ScoreTable(scores, labels, entries).blocks())
    assert [len(block.others) for block in blocks] == [5, 5, 5, 5, 3]
    assert np.concatenate([block.queries for block in blocks]).tolist() == list(range(23))
    others = np.concatenate([block.others for block in blocks])
    mates = labels[:, None] == entries
    assert np.allclose(others[~mates], want[~mates], atol=1e-6)
    assert np.isneginf(others[mates]).all()
    assert np.allclose(np.concatenate([block.mates for block in blocks]), want[mates], atol=5e-6)
    counts = ScoreTable(scores, labels, entries).impostor_counts()
    assert counts.tolist() == (~mates).sum(axis=1).tolist()


@pytest.mark.usefixtures("_small_blocks")
def test_a_score_has_the_same_digits_however_it_is_read():
    scores, _, _ = product_scores()
    table = ScoreTable(scores, np.zeros(23, dtype=int), np.ones(7, dtype=int))
    for _ in range(2):
        read = np.concatenate([block.others for block in table.blocks()])
        assert np.array_equal(read, np.stack(list(scores)))
    assert len(scores) == 23
    assert scores.shape == (23, 7)
    with pytest.raises(IndexError):
        scores[23]


def test_given_scores_are_not_changed():
    scores = np.eye(3)
    list(ScoreTable(scores, np.arange(3), np.arange(3)).blocks())
    assert np.array_equal(scores, np.eye(3))


def test_a_list_of_pairs_is_a_table_with_one_entry_and_no_mates():
    table = ScoreTable(np.array([[0.5], [0.2]]), np.array([4, 4]))
    (block,) = table.blocks()
    assert block.others.ravel().tolist() == [0.5, 0.2]
    assert not len(block.mates)


def test_mates_are_listed_query_by_query():
    queries, entries = mate_places(np.array([2, 0, 5]), np.array([0, 2, 2, 0]))
    assert queries.tolist() == [0, 0, 1, 1]
    assert entries.tolist() == [1, 2, 0, 3]
