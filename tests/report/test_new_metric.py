"""A metric that is added to the table of metrics appears in every report."""

import csv
import json
import re
import shutil
from dataclasses import replace

import pytest
import safetensors.numpy

from unibct.benchmark.execution import run_job
from unibct.benchmark.grid import Grid
from unibct.benchmark.run import plan_benchmark
from unibct.embeddings.extraction import embed
from unibct.evaluation import metrics as table
from unibct.evaluation.metrics import METRICS, Metric
from unibct.evaluation.search_test import CROSS
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.registry import Registry
from unibct.report.pages import render_report, write_benchmark_report


@pytest.fixture
def two_more_metrics(monkeypatch):
    """MRR with an interval, and a share without one."""
    mrr = table.mean_over_queries("MRR", lambda test: 1 / (1 + test.ranks))
    plain = Metric("top-2", "1:N", lambda test, far, rule: test.top(2))
    wider = Registry("metric", {**METRICS, "MRR": mrr, "top-2": plain})
    monkeypatch.setattr(table, "METRICS", wider)


@pytest.mark.usefixtures("two_more_metrics")
def test_a_new_metric_is_in_every_file_of_a_benchmark(finished, grid, tmp_path):
    out, without = finished[0].workspace.out, ("result.json", "samples.safetensors")
    for folder in ("models", "cells/open-class/unibct-plus"):  # nothing has to be trained again
        shutil.copytree(out / folder, tmp_path / folder, ignore=shutil.ignore_patterns(*without))
    small = Grid(grid.data, grid.test, grid.recipe, ("open-class",), ("unibct-plus",), (0,), ())
    benchmark = plan_benchmark(small, tmp_path, workers=1, device="cpu")
    for job in benchmark.jobs:
        run_job(benchmark.workspace, job)
    cell = tmp_path / "cells/open-class/unibct-plus/seed0"
    metrics = json.loads((cell / "result.json").read_text())["tests"][CROSS]["metrics"]
    assert metrics["top-1"] <= metrics["top-2"]
    assert metrics["top-1"] <= metrics["MRR"]
    samples = safetensors.numpy.load_file(cell / "samples.safetensors")
    assert samples[f"{CROSS}/MRR"].shape == samples[f"{CROSS}/top-1"].shape
    assert f"{CROSS}/top-2" not in samples

    results = benchmark.results()
    assert results.metrics[-2:] == ["mAP", "MRR"], "a table needs an interval"
    assert "MRR" not in results.deciding_metrics
    write_benchmark_report(results, benchmark, tmp_path)
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["test"] == CROSS]
    values = {row["metric"]: row["value"] for row in rows}
    assert values["MRR"] == f"{metrics['MRR']:.6f}"
    assert values["top-2"] == f"{metrics['top-2']:.6f}"
    gain = results.gain("open-class", "unibct-plus", "MRR")
    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "cross MRR" in text
        assert f"{100 * metrics['MRR']:.2f}" in text
        assert f"{100 * gain.estimate.low:+.2f} to {100 * gain.estimate.high:+.2f}" in text
        assert re.search(r"The verdict does not depend on .*mAP, MRR\.", text)


@pytest.mark.usefixtures("two_more_metrics")
def test_a_new_metric_is_on_the_page_of_the_demo(small_demo):
    result, _ = small_demo
    images = result.plan.test_images
    vectors = {role: embed(model, images).vectors for role, model in result.models.items()}
    sides = {role: vectors[role] for role in ("old", "new", "free")}
    evaluation = evaluate_embeddings(images.labels, **sides, repeats=50)
    page = render_report(replace(result, evaluation=evaluation))
    assert "<th>MRR, %</th>" in page
    assert 'MRR <span class="soft">not in the verdict</span>' in page
    for metrics in evaluation.values.values():
        assert f"<td>{100 * metrics['MRR']:.2f}</td>" in page
