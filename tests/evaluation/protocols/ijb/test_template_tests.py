from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.protocols.ijb.meta_files import write_meta
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb.meta import Meta, Subjects, read_meta
from unibct.evaluation.protocols.ijb.template_tests import evaluate_templates
from unibct.evaluation.templates import pool_templates


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
        images=("x.jpg",),
        templates=templates,
        media=none,
        landmarks=np.zeros((0, 5, 2), np.float32),
        scores=np.zeros(0, np.float32),
        first=first,
        second=second,
        same=same,
        galleries={
            "G1": Subjects(1000 + half[:30], half[:30]),
            "G2": Subjects(1000 + half[30:], half[30:]),
        },
        probes=Subjects(probe_templates, probe_subjects),
    )
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
    found = evaluate_templates(read, old, new, far=0.05, repeats=300, alpha=0.3)
    vector = {
        name: {t: v / np.linalg.norm(v) for t, v in zip(*model, strict=True)}
        for name, model in (("old", old), ("new", new))
    }
    blends = {t: 0.7 * vector["old"][t] + 0.3 * v for t, v in vector["new"].items()}
    vector["blend"] = {t: v / np.linalg.norm(v) for t, v in blends.items()}
    for name, test in found.tests.items():
        query, gallery = name.split("→")  # the query is the probe's side, the second column
        scores = np.array(
            [
                vector[gallery][a] @ vector[query][b]
                for a, b in zip(read.first, read.second, strict=True)
            ]
        )
        assert np.allclose(test.genuine, scores[read.same], atol=5e-6)
        assert np.allclose(all_scores(test.impostor), scores[~read.same], atol=1e-6)
    for name, test in found.tests.items():
        query, gallery = name.split("→")
        hits = []
        for template, subject in zip(*read.probes, strict=True):
            scores = [vector[gallery][1000 + s] @ vector[query][template] for s in range(60)]
            hits.append(np.argmax(scores) == subject)
        assert test.top(1) == pytest.approx(np.mean(hits))
    assert [*found.tests] == ["old→old", "new→old", "new→new", "old→new", "blend→old"]
    assert found.as_json()["blended_queries"]["alpha"] == 0.3
    assert [c.metric for c in found.criteria] == ["TAR@5e-2", "top-1", "top-5"]
    for criterion in found.criteria:
        assert criterion.cross == found.metrics("new→old")[criterion.metric]
        assert criterion.old_self == found.metrics("old→old")[criterion.metric]
        assert criterion.low < criterion.difference < criterion.high
    assert found.verdict == "compatible"
    assert {"top-10", "TPIR@0.01", "TPIR@0.1", "TAR@1e-1"} <= set(found.metrics("new→new"))
    assert found.metrics("old→new", rule="nearest").keys() == found.metrics("new→old").keys()
    by_corner = evaluate_templates(read, old, new, far=0.05, rule="nearest", repeats=300)
    assert by_corner.values["old→new"] == found.metrics("old→new", rule="nearest")
    assert by_corner.values["old→new"] != found.metrics("old→new", rule="strict")
    assert found.values["old→new"] == by_corner.metrics("old→new", rule="strict")
    assert by_corner.criteria == found.criteria
    assert by_corner.note.endswith("everything else, the verdict too, uses the strict threshold")
    assert found.note.startswith("old→new has the enrolled side from the new model")
    tars = [found.metrics("new→old")[f"TAR@{far}"] for far in ("5e-2", "1e-1")]
    assert all(low <= high for low, high in pairwise(tars))
    roc = found.tests["new→old"].pairs.roc()
    assert roc.tar[-1] == roc.far[-1] == 1


def test_the_sides_are_told_by_the_galleries_and_verdicts_follow():
    read, templates, subjects = benchmark_of()
    old, new = (model_of(templates, subjects, n, s) for n, s in ((1.2, 1), (0.5, 2)))
    swapped = replace(read, first=read.second, second=read.first)
    a, b = (evaluate_templates(r, old, new, repeats=20) for r in (read, swapped))
    assert a.criteria == b.criteria
    assert a.criteria[0].metric == "TAR@1e-1"  # 60 subjects carry no smaller rate
    assert a.as_json()["note"].startswith("TAR@1e-1 instead of TAR@1e-4: 60 subjects cannot")
    assert evaluate_templates(read, old, old, repeats=20).verdict == "within noise"
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(12, 12)))[0]
    foreign = evaluate_templates(read, old, (new[0], new[1] @ rotation), repeats=20)
    assert foreign.verdict == "not compatible"
    assert foreign.metrics("new→new") == pytest.approx(a.metrics("new→new"), abs=1e-3)


def test_the_interval_draws_the_same_subjects_for_both_tests():
    """A model against itself differs in no draw, so its interval is zero."""
    read, templates, subjects = benchmark_of()
    old = model_of(templates, subjects, 1.2, 1)
    found = evaluate_templates(read, old, old, far=0.05, repeats=50)
    assert [(c.low, c.high) for c in found.compared] == [(0, 0)] * len(found.compared)
    assert {c.metric for c in found.criteria} == {"TAR@5e-2", "top-1", "top-5"}


def test_evaluation_errors():
    read, templates, subjects = benchmark_of()
    old = model_of(templates, subjects, 1, 1)
    order = np.argsort(old[0])
    ids, vectors = old[0][order], old[1][order]
    with pytest.raises(UserError, match="the new model has no vector of template 5717"):
        evaluate_templates(read, old, (ids[:-1], vectors[:-1]))
    with pytest.raises(UserError, match="the old model has no vector of template 1000"):
        evaluate_templates(read, (ids[1:], vectors[1:]), old)
    with pytest.raises(UserError, match="new has the template 1001 twice"):
        evaluate_templates(read, old, (np.where(ids == 1000, 1001, ids), vectors))
    with pytest.raises(UserError, match="new has dimension 11 but old has dimension 12"):
        evaluate_templates(read, old, (ids, vectors[:, 1:]))
    with pytest.raises(UserError, match="old has NaN or infinite values, first in row 0"):
        evaluate_templates(read, (ids, np.full_like(vectors, np.nan)), old)
    with pytest.raises(UserError, match="template ids of new has 299 entries"):
        evaluate_templates(read, old, (ids[1:], vectors))
    lost = replace(read, probes=Subjects(*(part[1:] for part in read.probes)))
    with pytest.raises(UserError, match="template 5000 of the pairs is in no file of probes"):
        evaluate_templates(lost, old, old)
    with pytest.raises(UserError, match="seed must be at least 0 and repeats at least 1"):
        evaluate_templates(read, old, old, repeats=0)


def test_from_files_to_a_verdict(tmp_path):
    """Written meta files, images' embeddings, pooled templates, tests: one template by hand."""
    read = read_meta(write_meta(tmp_path))
    vectors = np.array([[1.0, 0], [3, 0], [1, 0.2], [0.1, 1], [0, 2]])
    pooled = pool_templates(vectors, read.templates, read.media, scores=read.scores)
    assert pooled.ids.tolist() == [1, 4, 7, 90]
    found = evaluate_templates(read, pooled, pooled, repeats=5)
    assert found.metrics("new→old")["top-1"] == 1
    assert found.verdict == "within noise"
    assert "only 2 subjects have queries" in found.note
