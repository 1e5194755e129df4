from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.protocols.ijb_meta_files import write_meta
from unibct.errors import UserError
from unibct.evaluation.identification import mate_ranks
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.protocols import ijb_tests as pair_scores_module
from unibct.evaluation.protocols.ijb_files import Meta, TemplateSubjects, read_meta
from unibct.evaluation.protocols.ijb_tests import evaluate_templates, pair_scores, search_galleries
from unibct.evaluation.templates import pool_templates


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
    for block, members in pair_scores_module._blocks(rows, limit, height):
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
    for second, rows, message in (
        (first, ([0, 1], [2, 3]), "second_rows has 3 in pair 1, but there are 3 templates"),
        (first, ([-1, 1], [2, 0]), "first_rows has -1 in pair 0"),
        (first, ([0, 1], [2]), "first_rows has 2 entries but second_rows has 1"),
        (first[:, :2], ([0], [0]), "dimension 3 but second has dimension 2"),
    ):
        with pytest.raises(UserError, match=message):
            pair_scores(first, second, *rows)


def test_identification_equals_naive_loops(monkeypatch):
    monkeypatch.setattr("unibct.evaluation.protocols.ijb_tests._SCORES_AT_ONCE", 300)
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
    three = np.eye(3)
    for query, subjects, enrolled, message in (
        (three[:2], [1, 4], [1, 2, 3], "probe row 1 has the subject 4, which no gallery has"),
        (np.eye(2), [1, 2], [1, 2, 3], "query has dimension 2 but G1 has dimension 3"),
        (three, [1, 2, 3], [1, 2], "subjects of G1 has 2 entries"),
    ):
        with pytest.raises(UserError, match=message):
            search_galleries(query, subjects, {"G1": (three, np.array(enrolled))})


def benchmark_of(subjects=60, probes=4, seed=9):
    """Gallery templates 1000 + subject, probe templates from 5000; all pairs of them."""
    rng = np.random.default_rng(seed)
    enrolled = np.arange(subjects)
    half = rng.permutation(subjects)
    probe_subjects = rng.permutation(np.repeat(enrolled, probes))
    probe_templates = 5000 + 3 * np.arange(len(probe_subjects))
    first = np.repeat(1000 + enrolled, len(probe_templates))
    second = np.tile(probe_templates, subjects)
    same = np.repeat(enrolled, len(probe_templates)) == np.tile(probe_subjects, subjects)
    templates = np.concatenate([1000 + enrolled, probe_templates])
    none = np.zeros(0, dtype=np.int64)
    read = Meta(
        ("x.jpg",), templates, none, np.zeros((0, 5, 2), np.float32), np.zeros(0, np.float32),
        first, second, same,
        galleries={
            name: TemplateSubjects(1000 + part, part)
            for name, part in (("G1", half[:30]), ("G2", half[30:]))
        },
        probes=TemplateSubjects(probe_templates, probe_subjects),
    )  # fmt: skip
    return read, templates, np.concatenate([enrolled, probe_subjects])


def model_of(templates, subjects, noise, seed):
    centres = np.random.default_rng(0).normal(size=(60, 12))
    rng = np.random.default_rng(seed)
    vectors = centres[subjects] + noise * rng.normal(size=(len(subjects), 12))
    shuffled = rng.permutation(len(templates))
    return templates[shuffled], vectors[shuffled].astype(np.float32)


def test_evaluation_equals_naive_scores():
    read, templates, subjects = benchmark_of()
    old, new = (model_of(templates, subjects, n, s) for n, s in ((1.2, 1), (0.5, 2)))
    found = evaluate_templates(read, old=old, new=new, far=0.05, repeats=300, alpha=0.3)
    vector = {
        name: {t: v / np.linalg.norm(v) for t, v in zip(*model, strict=True)}
        for name, model in (("old", old), ("new", new))
    }
    blends = {t: 0.7 * vector["old"][t] + 0.3 * v for t, v in vector["new"].items()}
    vector["blend"] = {t: v / np.linalg.norm(v) for t, v in blends.items()}
    for name, test in found.tests.items():
        query, gallery = name.split("→")  # the query is the probe's side, the second column
        pairs = zip(read.first, read.second, strict=True)
        scores = np.array([vector[gallery][a] @ vector[query][b] for a, b in pairs])
        assert np.allclose(test.genuine, scores[read.same], atol=5e-6)
        assert np.allclose(all_scores(test.impostor), scores[~read.same], atol=1e-6)
        hits = []
        for template, subject in zip(*read.probes, strict=True):
            scores = [vector[gallery][1000 + s] @ vector[query][template] for s in range(60)]
            hits.append(np.argmax(scores) == subject)
        assert test.top(1) == pytest.approx(np.mean(hits))
    assert [*found.tests] == ["old→old", "new→old", "new→new", "old→new", "blend→old"]
    assert found.as_json()["blended_queries"]["alpha"] == 0.3
    assert [c.metric for c in found.criteria] == ["TAR@5e-2", "top-1", "top-5"]
    for criterion in found.criteria:
        assert criterion.cross == found.values["new→old"][criterion.metric]
        assert criterion.old_self == found.values["old→old"][criterion.metric]
        assert criterion.low < criterion.difference < criterion.high
    assert found.verdict == "compatible"
    assert {"top-10", "TPIR@0.01", "TPIR@0.1", "TAR@1e-1"} <= set(found.values["new→new"])
    by_corner = evaluate_templates(read, old=old, new=new, far=0.05, rule="nearest", repeats=300)
    fars = [float(name.removeprefix("TAR@")) for name in found.values["new→old"] if "TAR" in name]
    for evaluation, rule in ((found, "strict"), (by_corner, "nearest")):
        expected = measured_metrics(evaluation.tests["old→new"], fars, rule=rule)
        assert evaluation.values["old→new"] == expected
        assert expected.keys() == found.values["new→old"].keys()
    assert by_corner.values["old→new"] != found.values["old→new"]
    assert by_corner.criteria == found.criteria
    assert by_corner.note.endswith("everything else, the verdict too, uses the strict threshold")
    assert found.note.startswith("old→new has the enrolled side from the new model")
    tars = [found.values["new→old"][f"TAR@{far}"] for far in ("5e-2", "1e-1")]
    assert all(low <= high for low, high in pairwise(tars))
    roc = found.tests["new→old"].pairs.roc()
    assert roc.tar[-1] == roc.far[-1] == 1


def test_the_sides_are_told_by_the_galleries_and_verdicts_follow():
    read, templates, subjects = benchmark_of()
    old, new = (model_of(templates, subjects, n, s) for n, s in ((1.2, 1), (0.5, 2)))
    swapped = replace(read, first=read.second, second=read.first)
    a, b = (evaluate_templates(r, old=old, new=new, repeats=20) for r in (read, swapped))
    assert a.criteria == b.criteria
    assert a.criteria[0].metric == "TAR@1e-1"  # 60 subjects carry no smaller rate
    assert a.as_json()["note"].startswith("TAR@1e-1 instead of TAR@1e-4: 60 subjects cannot")
    assert evaluate_templates(read, old=old, new=old, repeats=20).verdict == "within noise"
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(12, 12)))[0]
    foreign = evaluate_templates(read, old=old, new=(new[0], new[1] @ rotation), repeats=20)
    assert foreign.verdict == "not compatible"
    assert foreign.values["new→new"] == pytest.approx(a.values["new→new"], abs=1e-3)


def test_the_interval_draws_the_same_subjects_for_both_tests():
    """A model against itself differs in no draw, so its interval is zero."""
    read, templates, subjects = benchmark_of()
    old = model_of(templates, subjects, 1.2, 1)
    found = evaluate_templates(read, old=old, new=old, far=0.05, repeats=50)
    assert [(c.low, c.high) for c in found.compared] == [(0, 0)] * len(found.compared)
    assert {c.metric for c in found.criteria} == {"TAR@5e-2", "top-1", "top-5"}


def test_evaluation_errors():
    read, templates, subjects = benchmark_of()
    old = model_of(templates, subjects, 1, 1)
    order = np.argsort(old[0])
    ids, vectors = old[0][order], old[1][order]
    for changed, message in (
        ({"new": (ids[:-1], vectors[:-1])}, "the new model has no vector of template 5717"),
        ({"old": (ids[1:], vectors[1:])}, "the old model has no vector of template 1000"),
        ({"new": (np.where(ids == 1000, 1001, ids), vectors)}, "new has the template 1001 twice"),
        ({"new": (ids, vectors[:, 1:])}, "new has dimension 11 but old has dimension 12"),
        (
            {"old": (ids, np.full_like(vectors, np.nan))},
            "old has NaN or infinite values, first in row 0",
        ),
        ({"new": (ids[1:], vectors)}, "template ids of new has 299 entries"),
        ({"repeats": 0}, "seed must be at least 0 and repeats at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate_templates(read, **{"old": old, "new": old} | changed)
    lost = replace(read, probes=TemplateSubjects(*(part[1:] for part in read.probes)))
    with pytest.raises(UserError, match="template 5000 of the pairs is in no file of probes"):
        evaluate_templates(lost, old=old, new=old)


def test_from_files_to_a_verdict(tmp_path):
    """Written meta files, images' embeddings, pooled templates, tests: one template by hand."""
    read = read_meta(write_meta(tmp_path))
    vectors = np.array([[1.0, 0], [3, 0], [1, 0.2], [0.1, 1], [0, 2]])
    pooled = pool_templates(vectors, read.templates, read.media, scores=read.scores)
    assert pooled.ids.tolist() == [1, 4, 7, 90]
    found = evaluate_templates(read, old=pooled, new=pooled, repeats=5)
    assert found.values["new→old"]["top-1"] == 1
    assert found.verdict == "within noise"
    assert "only 2 subjects have queries" in found.note
