import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes
from tests.tiny_models import LARGEST_SHIFT
from unibct.benchmark.threshold_tests import AtThreshold, cell_score_scale, threshold_name
from unibct.benchmark.workspace import RESULT_FILE
from unibct.evaluation.bootstrap import ClassDraws, class_draws
from unibct.evaluation.criterion import estimate
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.old_threshold import at_old_thresholds
from unibct.evaluation.search_test import search_test


def test_the_values_are_those_of_an_evaluation_at_the_same_rate():
    old, labels = noisy_classes(classes=60, images=8, noise=1.0)
    new, _ = noisy_classes(classes=60, images=8, noise=0.7, seed=1)
    split = split_gallery(labels)
    old_self, cross = search_test(old, old, split), search_test(new, old, split)
    draws = class_draws(cross, repeats=50)
    row = at_old_thresholds(old_self, cross, draws, score_scale=1.1)[0]
    fixed = AtThreshold(old_self, cross, row.far, 1.1)
    found = fixed.measured()
    assert (found["threshold"], found["score_scale"]) == (row.threshold, 1.1)
    for way in ("old", "cross", "mapped", "scaled"):
        expected = getattr(row, way)
        assert found["ways"][way] == {"TAR": expected.tar, "FAR": expected.far}
        sampled = fixed.sampled(draws)[way]
        over = estimate(np.array([expected.far]), sampled["FAR"][None], classes=60)
        assert expected.far_interval == pytest.approx((max(over.low, 0), over.high))
        once = fixed.sampled(ClassDraws(np.ones((1, draws.shape[1]), int)))[way]
        assert (once["TAR"][0], once["FAR"][0]) == pytest.approx((expected.tar, expected.far))
    without = AtThreshold(old_self, cross, row.far, None).measured()
    assert list(without["ways"]) == ["old", "cross", "mapped"]


def test_a_cell_keeps_the_scale_of_its_model_and_measures_one_that_is_missing(finished, tmp_path):
    benchmark, results = finished
    workspace = benchmark.workspace
    jobs = {job.folder: job for job in benchmark.jobs}
    for method in ("unibct-plus", "procrustes"):
        job = jobs[f"cells/open-class/{method}/seed1"]
        cell = results.by_job[job.folder]["at_old_threshold"]
        model = workspace.model(job.folder)
        assert cell["score_scale"] == model.score_scale > 0
        # A model of an earlier version has none; the same images give the same number.
        description = workspace.out / job.folder / "model" / "model.json"
        kept = tmp_path / "model.json"
        shutil.copy(description, kept)
        content = json.loads(description.read_text())
        del content["training"]["score_scale"]
        description.write_text(json.dumps(content))
        assert cell_score_scale(workspace, job) == pytest.approx(cell["score_scale"], rel=1e-6)
        shutil.copy(kept, description)
    free = jobs["cells/open-class/none/seed1"]
    assert cell_score_scale(workspace, free) is None
    stored = json.loads((workspace.out / free.folder / RESULT_FILE).read_text())
    assert stored["at_old_threshold"]["score_scale"] is None
    assert "scaled" not in stored["at_old_threshold"]["ways"]
    assert threshold_name("scaled") == "scaled at old threshold"


def test_a_cell_whose_validation_scores_a_factor_would_lift_has_no_scale(tmp_path, monkeypatch):
    monkeypatch.setattr("unibct.embeddings.score_scale._LARGEST_SHIFT", LARGEST_SHIFT)
    old, labels = noisy_classes(classes=20, images=5)
    cones = {"old": old + 6, "cell": old + 3}  # all scores are near 1
    monkeypatch.setattr(
        "unibct.benchmark.threshold_tests.validation_vectors", lambda _, folder, __: cones[folder]
    )
    (tmp_path / "cell" / "model").mkdir(parents=True)
    (tmp_path / "cell" / "model" / "model.json").write_text("{}")
    workspace = SimpleNamespace(out=tmp_path, validation_images=SimpleNamespace(labels=labels))
    training = SimpleNamespace(part="new:open-class", old="old")
    job = SimpleNamespace(folder="cell", training=training)
    assert cell_score_scale(workspace, job) is None
    cones["cell"] = cones["old"]
    assert cell_score_scale(workspace, job) == pytest.approx(1)
