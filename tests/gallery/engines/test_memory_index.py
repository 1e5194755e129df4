import numpy as np

from tests.gallery.conftest import random_vectors
from unibct.gallery.engines.memory_index import Changes, MemoryIndex, remove_graph


class Cursor:
    """Gives rows as SQLite's cursor does."""

    def __init__(self, rows):
        self.rows = list(rows)

    def fetchmany(self, count):
        part, self.rows = self.rows[:count], self.rows[count:]
        return part


def changes(clock, rows=(), deleted=()):
    blobs = [(number, mark, np.asarray(v, "<f4").tobytes(), clock) for number, mark, v in rows]
    return Changes(clock, list(deleted), len(blobs), Cursor(blobs))


def naive(rows, query, k):
    return sorted(rows, key=lambda number: -float(rows[number] @ query))[:k]


def test_it_follows_writes_marks_and_deletions(tmp_path):
    """A random history; after each change the search equals one by one comparison."""
    generator = np.random.default_rng(0)
    live, everything = {}, {}
    indexes = [MemoryIndex(6, tmp_path / "live", False), MemoryIndex(6, tmp_path / "all", True)]
    next_number = 1
    for clock in range(1, 60):
        written = []
        for _ in range(generator.integers(0, 30)):
            written.append((next_number, 0, random_vectors(1, 6, next_number)[0]))
            next_number += 1
        old = [int(n) for n in generator.permutation(list(everything))[:9]]
        written += [(n, 0, random_vectors(1, 6, n + 10_000)[0]) for n in old[:3]]
        written += [(n, clock, everything[n]) for n in old[3:6]]
        deleted = sorted(old[6:9])
        for number, mark, vector in written:
            everything[number] = vector
            live.pop(number, None)
            live |= {} if mark else {number: vector}
        for number in deleted:
            everything.pop(number, None)
            live.pop(number, None)
        for index, rows in zip(indexes, (live, everything), strict=True):
            index.follow(changes(clock, sorted(written, key=lambda row: row[0]), deleted))
            assert len(index) == len(rows)
            query = random_vectors(1, 6, clock)
            found, similarities = index.search(query, 4, None, approximate=False)
            assert found[0] == naive(rows, query[0], 4)
            np.testing.assert_allclose(
                similarities[0], [rows[n] @ query[0] for n in found[0]], atol=1e-6
            )
            allowed = np.array(sorted(rows)[::3], dtype=np.int64)
            some, _ = index.search(query, 4, allowed, approximate=False)
            assert some[0] == naive({n: rows[n] for n in allowed}, query[0], 4)


def test_the_graph_covers_rows_that_came_later(tmp_path):
    index = MemoryIndex(6, tmp_path / "g.faiss", False)
    vectors = random_vectors(200, 6)
    index.follow(changes(1, [(i + 1, 0, vectors[i]) for i in range(150)]))
    index.build_graph()
    index.follow(changes(2, [(i + 1, 0, vectors[i]) for i in range(150, 200)], [1, 2, 3]))
    found, _ = index.search(vectors[150:], 1, None, approximate=True)
    assert [row[0] for row in found] == list(range(151, 201))
    remove_graph(tmp_path / "g.faiss")
    assert not list(tmp_path.iterdir())


def test_a_graph_search_after_many_removals_returns_the_rows_it_compared(tmp_path):
    """Some queries get enough rows from the graph, others are searched for exactly afterwards."""
    index = MemoryIndex(6, tmp_path / "g.faiss", False)
    vectors = random_vectors(600, 6)
    rows = {number: vectors[number - 1] for number in range(1, 601)}
    index.follow(changes(1, [(number, 0, rows[number]) for number in rows]))
    index.build_graph()
    gone = naive(rows, vectors[0], 130)  # the graph finds little but these for the first query
    index.follow(changes(2, deleted=sorted(gone)))
    for number in gone:
        del rows[number]
    queries = np.stack([vectors[0], -vectors[0], *vectors[400:450]])
    found, similarities = index.search(queries, 5, None, approximate=True)
    for query, numbers, values in zip(queries, found, similarities, strict=True):
        assert set(numbers) <= set(rows)
        np.testing.assert_allclose(values, [rows[n] @ query for n in numbers], atol=1e-6)
    right = [len({*got} & {*naive(rows, q, 5)}) for got, q in zip(found, queries, strict=True)]
    assert np.mean(right) > 4.9


def test_an_added_row_does_not_copy_the_others(tmp_path):
    index, rows = MemoryIndex(6, tmp_path / "g", False), random_vectors(1200, 6)
    index.follow(changes(1, [(n, 0, rows[n]) for n in range(1000)]))
    places = set()
    for n in range(1000, 1200):
        index.follow(changes(n, [(n, 0, rows[n])]))
        found, _ = index.search(rows[n : n + 1], 1, None, approximate=False)
        assert found == [[n]]
        index.follow(changes(n))
        places |= {column.ctypes.data for column in (index._vectors, index._numbers, index._gone)}
    assert len(places) == 3, "each grew once, by half"
    index.follow(changes(1200, deleted=range(900)))
    assert (index.search(rows[:1], 1, None, approximate=False)[0][0][0] >= 900, len(index)) == (
        True,
        300,
    )
    index.follow(changes(1201, [(1200, 0, rows[0])]))
    assert index.search(rows[:1], 1, None, approximate=False)[0] == [[1200]]
