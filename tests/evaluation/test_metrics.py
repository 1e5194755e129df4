import json
import re

import numpy as np
import pytest
from rich.console import Console

from tests.evaluation.noisy_classes import noisy_classes
from unibct.errors import UserError
from unibct.evaluation import metrics as table
from unibct.evaluation.metrics import METRICS, Metric, find_metric, measured_metrics
from unibct.evaluation.search_test import CROSS, search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.registry import Registry
from unibct.report.terminal import print_evaluation


def test_the_metrics_of_an_image_test():
    vectors, labels = noisy_classes()
    test = search_test(vectors, vectors, split_gallery(labels))
    values = measured_metrics(test, [0.1, 0.5])
    titles = ["TAR@1e-1", "TAR@5e-1", "top-1", "top-5", "TPIR@0.01", "TPIR@0.1", "mAP"]
    assert list(values) == titles
    assert values["TAR@1e-1"] == test.tar(0.1)
    assert values["top-5"] == test.top(5)
    assert [find_metric(title).name for title in values][:2] == ["TAR", "TAR"]
    assert find_metric("TPIR@0.01").name == "TPIR@0.01"
    assert [m.name for m in METRICS.values() if m.decides] == ["TAR", "top-1", "top-5"]


def test_a_new_metric_is_one_function_and_one_line(monkeypatch):
    """The evaluation, the JSON and the terminal show what is in the table."""

    def reciprocal_ranks(test):
        return 1 / (1 + test.ranks)

    line = table.mean_over_queries("MRR", reciprocal_ranks)
    monkeypatch.setattr(table, "METRICS", Registry("metric", {**METRICS, "MRR": line}))
    old, labels = noisy_classes(noise=1.3)
    new, _ = noisy_classes(noise=0.3, seed=1)
    found = evaluate_embeddings(labels, old=old, new=new, repeats=50)
    assert found.values[CROSS]["MRR"] > found.values[CROSS]["top-1"]
    described = json.loads(json.dumps(found.as_json()))
    assert described["tests"][CROSS]["MRR"] == found.values[CROSS]["MRR"]
    criterion = next(c for c in found.compared if c.metric == "MRR")
    assert criterion.low < criterion.difference < criterion.high
    assert not criterion.decides
    console = Console(record=True, width=200)
    print_evaluation(found, console)
    printed = console.export_text()
    assert "MRR" in printed.splitlines()[0]
    assert "MRR (not in the verdict)" in printed


def test_a_new_metric_at_a_false_accept_rate_has_its_own_title(monkeypatch):
    missed = Metric("FRR", "1:1", lambda test, far, rule: 1 - test.tar(far, rule=rule), at_far=True)
    monkeypatch.setattr(table, "METRICS", Registry("metric", {**METRICS, "FRR": missed}))
    vectors, labels = noisy_classes()
    test = search_test(vectors, vectors, split_gallery(labels))
    values = measured_metrics(test, [0.1, 0.5])
    assert [title for title in values if title.startswith("TAR")] == ["TAR@1e-1", "TAR@5e-1"]
    assert [title for title in values if title.startswith("FRR")] == ["FRR@1e-1", "FRR@5e-1"]
    assert values["FRR@1e-1"] == 1 - values["TAR@1e-1"]
    assert find_metric("FRR@1e-1") is missed


@pytest.mark.parametrize("title", ["MRR", "top-6", "top-1@1e-3", "TPIR@0.5"])
def test_an_unknown_metric_is_named_with_those_that_there_are(title):
    message = rf"unknown metric '{re.escape(title)}'.*; choose one of TAR, top-1, top-5"
    with pytest.raises(UserError, match=message):
        find_metric(title)


def test_a_metric_that_does_not_decide_leaves_the_verdict_alone():
    old, labels = noisy_classes(noise=1.3)
    better, _ = noisy_classes(noise=0.3, seed=1)
    found = evaluate_embeddings(labels, old=old, new=better, far=0.01, repeats=300)
    assert [c.metric for c in found.compared if not c.decides] == ["TPIR@0.01", "TPIR@0.1", "mAP"]
    assert [c.metric for c in found.criteria] == ["TAR@1e-2", "top-1", "top-5"]
    assert found.verdict == "compatible"
    assert found.values[CROSS]["mAP"] == pytest.approx(np.mean(found.tests[CROSS].per_query["mAP"]))
