import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.metrics.identification import mate_ranks
from unibct.evaluation.protocols.ijb.search import search_galleries


def test_identification_equals_naive_loops(monkeypatch):
    monkeypatch.setattr("unibct.evaluation.protocols.ijb.search._SCORES_AT_ONCE", 300)
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(30, 6))
    unit = lambda v: v / np.linalg.norm(v, axis=-1, keepdims=True)  # noqa: E731
    query_subjects = rng.integers(0, 30, 120)
    query = unit(centres[query_subjects] + 0.9 * rng.normal(size=(120, 6)))
    parts = {"G1": rng.permutation(14), "G2": np.append(14 + rng.permutation(16), 20)}
    galleries = {
        name: (unit(centres[subjects] + 0.9 * rng.normal(size=(len(subjects), 6))), subjects + 100)
        for name, subjects in parts.items()
    }
    test = search_galleries(query, query_subjects + 100, galleries)
    merged = np.concatenate([vectors for vectors, _ in galleries.values()])
    subjects = np.concatenate([subjects for _, subjects in galleries.values()])
    assert np.array_equal(test.ranks, mate_ranks(query @ merged.T, query_subjects + 100, subjects))
    tops = [np.mean(test.ranks < k) for k in (1, 5, 10)]
    assert tops[0] < tops[1] < tops[2] < 1
    tpirs = {}
    for fpir in (0.01, 0.1, 0.3):
        rates = []
        for vectors, subjects in galleries.values():
            unmated, hits = [], []
            for vector, subject in zip(query, query_subjects + 100, strict=True):
                scores = vectors @ vector
                if subject not in subjects:
                    unmated.append(max(scores))
            threshold = sorted(unmated, reverse=True)[max(int(len(unmated) * fpir) - 1, 0)]
            for vector, subject in zip(query, query_subjects + 100, strict=True):
                scores = vectors @ vector
                if subject in subjects:
                    mate, other = max(scores[subjects == subject]), max(scores[subjects != subject])
                    hits.append(mate > threshold and mate > other)
            rates.append(np.mean(hits))
        tpirs[fpir] = np.mean(rates)
        rates = [search.tpir(fpir) for search in test.open_searches.values()]
        assert np.mean(rates) == pytest.approx(tpirs[fpir])
    assert tpirs[0.01] < tpirs[0.3]


def test_identification_errors():
    galleries = {"G1": (np.eye(3), np.array([1, 2, 3]))}
    with pytest.raises(UserError, match="probe row 1 has the subject 4, which no gallery has"):
        search_galleries(np.eye(3)[:2], [1, 4], galleries)
    with pytest.raises(UserError, match="query has dimension 2 but G1 has dimension 3"):
        search_galleries(np.eye(2), [1, 2], galleries)
    with pytest.raises(UserError, match="subjects of G1 has 2 entries"):
        search_galleries(np.eye(3), [1, 2, 3], {"G1": (np.eye(3), np.array([1, 2]))})
