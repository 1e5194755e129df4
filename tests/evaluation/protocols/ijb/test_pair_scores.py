from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.protocols.ijb import pair_scores as pair_scores_module
from unibct.evaluation.protocols.ijb.pair_scores import pair_scores


@pytest.mark.parametrize("entries", [1, 300, 10_000_000])
@pytest.mark.parametrize("gain", [0, 2, 10**9])  # gathered, mixed, product
@pytest.mark.parametrize("ordered", [True, False])
def test_pair_scores_equal_gathered_rows(monkeypatch, entries, gain, ordered):
    monkeypatch.setattr(pair_scores_module, "_PRODUCT_ENTRIES", entries)
    monkeypatch.setattr(pair_scores_module, "_PRODUCT_GAIN", gain)
    monkeypatch.setattr(pair_scores_module, "_PAIRS_AT_ONCE", 50)
    monkeypatch.setattr(pair_scores_module, "_GATHERED_AT_ONCE", 30)
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(40, 8)), rng.normal(size=(70, 8)).astype(np.float32)
    rows = 39 - 3 * (rng.integers(0, 12, 900) * rng.integers(0, 12, 900) // 12)
    columns = 2 + 2 * rng.integers(0, 30, 900).astype(np.int32)
    rows = np.sort(rows) if ordered else rows
    expected = (first[rows] * second[columns]).sum(axis=1)
    assert np.allclose(pair_scores(first, second, rows, columns), expected, atol=1e-5)
    assert np.allclose(pair_scores(second, first, columns, rows), expected, atol=1e-5)


def grouped(rows, rng):
    """Equal rows together, the groups in any order."""
    place = rng.permutation(rows.max(initial=0) + 1)
    return rows[np.argsort(place[rows], kind="stable")]


ORDERS = {
    "random": lambda rows, rng: rows,
    "ascending": lambda rows, rng: np.sort(rows),
    "descending": lambda rows, rng: np.sort(rows)[::-1],
    "grouped": grouped,
    "grouped but for one": lambda rows, rng: np.append(grouped(rows, rng)[1:], rows[:1]),
    "one row": lambda rows, rng: np.repeat(rows[:1], len(rows)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_pair_scores_whatever_the_order_and_the_number(monkeypatch, order, kind):
    rng = np.random.default_rng(len(order))
    for count in (0, 1, 2, 7, 300):
        for entries in (1, 40, 10_000_000):
            for name, value in {
                "_PRODUCT_ENTRIES": entries,
                "_PRODUCT_GAIN": int(rng.choice([0, 1, 3, 10**6])),
                "_PAIRS_AT_ONCE": int(rng.integers(1, 60)),
                "_GATHERED_AT_ONCE": int(rng.integers(1, 60)),
            }.items():
                monkeypatch.setattr(pair_scores_module, name, value)
            first = rng.normal(size=(rng.integers(1, 50), 5)).astype(np.float32)
            second = first if rng.random() < 0.3 else rng.normal(size=(rng.integers(1, 50), 5))
            rows = ORDERS[order](rng.integers(0, len(first), count), rng).astype(kind)
            columns = rng.integers(0, len(second), count).astype(kind)
            expected = (first[rows] * second[columns]).sum(axis=1)
            found = pair_scores(first, second, rows, columns)
            assert found.dtype == np.float32
            assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "height"), [(65_536, 1), (65_537, 1), (131_073, 2)])
def test_blocks_of_very_many_rows(limit, height):
    """More blocks than 16 bits count: each pair is in one block, which has its row."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(limit), rng.integers(0, limit, 100)])
    times = np.zeros(len(rows), dtype=int)
    with ThreadPoolExecutor(2) as threads:
        for block, members in pair_scores_module._blocks(rows, limit, height, threads):
            assert len(block) <= height
            assert set(rows[members]) == set(block)
            times[members] += 1
    assert (times == 1).all()


def test_an_error_in_a_thread_is_not_lost(monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(pair_scores_module, "_PRODUCT_GAIN", 0)
    monkeypatch.setattr(np, "einsum", fail)
    with pytest.raises(MemoryError):
        pair_scores(np.eye(3), np.eye(3), [0, 1, 2], [0, 1, 1])


def test_pair_scores_of_none_and_errors():
    first = np.eye(3)
    none = np.zeros(0, dtype=np.int64)
    assert pair_scores(first, first, none, none).shape == (0,)
    with pytest.raises(UserError, match="second_rows has 3 in pair 1, but there are 3 templates"):
        pair_scores(first, first, [0, 1], [2, 3])
    with pytest.raises(UserError, match="first_rows has -1 in pair 0"):
        pair_scores(first, first, [-1, 1], [2, 0])
    with pytest.raises(UserError, match="first_rows has 2 entries but second_rows has 1"):
        pair_scores(first, first, [0, 1], [2])
    with pytest.raises(UserError, match="dimension 3 but second has dimension 2"):
        pair_scores(first, first[:, :2], [0], [0])
