import io
import json
import shutil

import numpy as np
import pytest
from rich.console import Console

from unibct.benchmark.result_reading import read_results
from unibct.benchmark.results import Measured
from unibct.report.benchmark_tables import verdict_table
from unibct.report.pages.benchmark import render_markdown
from unibct.report.terminal import print_benchmark


def test_differences_are_paired():
    shared = np.random.default_rng(0).normal(size=(3, 500))
    pair = Measured(shared.mean(1) + 1, shared + 1, 50) - Measured(shared.mean(1), shared, 50)
    difference = pair.estimate
    assert (difference.mean, difference.low, difference.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize(("classes", "few"), [(9, True), (10, False)])
def test_no_verdict_over_fewer_than_ten_classes(finished, tmp_path, classes, few):
    benchmark, _ = finished
    out = tmp_path / "copy"
    shutil.copytree(benchmark.workspace.out, out)
    for path in out.rglob("result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"query_classes": classes}))
    results = read_results(benchmark.workspace.grid, benchmark.jobs, out)
    assert results.query_classes == classes
    difference = results.cross("open-class", "none", "top-1") - results.old_self(
        "open-class", "top-1"
    )
    verdict = "within noise" if few else "not compatible"
    assert difference.estimate.high < 0
    assert difference.estimate.verdict == verdict
    row = next(row for row in verdict_table(results).rows if row[0].text == "none")
    assert any(cell.text.startswith(verdict) for cell in row)
    page = render_markdown(results)
    terminal = Console(file=io.StringIO(), width=300)
    print_benchmark(results, terminal)
    for text in (page, terminal.file.getvalue()):
        assert ("Only 9 classes have queries" in text) == few
