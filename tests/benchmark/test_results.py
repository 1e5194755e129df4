import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from unibct.benchmark.jobs import make_jobs
from unibct.benchmark.results import Measured, as_csv, read_results, shared_jobs
from unibct.benchmark.run import plan_benchmark
from unibct.benchmark.workspace import Workspace
from unibct.errors import UserError
from unibct.evaluation.criterion import estimate
from unibct.report.benchmark_tables import verdict_table
from unibct.report.pages import render_markdown
from unibct.report.terminal import print_benchmark


def test_differences_are_paired():
    shared = np.random.default_rng(0).normal(size=(3, 500))
    pair = Measured(shared.mean(1) + 1, shared + 1, 50) - Measured(shared.mean(1), shared, 50)
    difference = pair.estimate
    assert (difference.mean, difference.low, difference.high) == pytest.approx((1, 1, 1))


@pytest.fixture
def copied(benchmark, tmp_path):
    """A copy of the finished results."""
    ignored = shutil.ignore_patterns("cache", "model", "embeddings")
    return shutil.copytree(benchmark.workspace.out, tmp_path / "copy", ignore=ignored)


@pytest.fixture
def reread(benchmark, copied):
    """Reads a copy of the finished benchmark, in which ``change`` is made to some results."""

    def changed(change, folder="."):
        for path in (copied / folder).rglob("result.json"):
            result = json.loads(path.read_text())
            change(result)
            path.write_text(json.dumps(result))
        return read_results(benchmark.workspace.grid, benchmark.jobs, copied)

    return changed


@pytest.mark.parametrize(("classes", "few"), [(9, True), (10, False)])
def test_no_verdict_over_fewer_than_ten_classes(reread, classes, few):
    results = reread(lambda result: result.update(query_classes=classes))
    assert results.query_classes == classes
    difference = results.gain("open-class", "none", "top-1")
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


WHERE = [("scaled at old threshold", "TAR"), ("mixed raw", "top-1 mean"), ("between→old", "top-1")]


def test_a_value_is_that_of_each_seeds_own_cell(results):
    cells = results.cells("open-class", "unibct-plus")
    searches = results.cross("open-class", "unibct-plus", "top-1")
    written = [
        (cell["at_old_threshold"]["ways"]["scaled"]["TAR"] for cell in cells),
        (cell["mixed_galleries"]["mergings"]["raw"]["values"]["top-1 mean"] for cell in cells),
        (cell["tests"]["between→old"]["metrics"]["top-1"] for cell in cells),
    ]
    for where, values in zip(WHERE, written, strict=True):
        measured = results.in_cell("open-class", "unibct-plus", *where)
        assert measured is not None
        assert measured.values.tolist() == pytest.approx(list(values))
        assert measured.samples.shape == searches.samples.shape
        assert (measured.samples.min(axis=1) <= measured.values).all()
        assert (measured.samples.max(axis=1) >= measured.values).all()


def test_there_is_no_value_if_one_seed_lacks_it(finished, reread):
    def forget(result):
        del result["mixed_galleries"], result["at_old_threshold"], result["tests"]["between→old"]

    fewer = reread(forget, "cells/open-class/unibct-plus/seed1")
    for where in WHERE:
        assert finished[1].in_cell("open-class", "unibct-plus", *where) is not None
        assert fewer.in_cell("open-class", "unibct-plus", *where) is None


def test_a_test_of_a_model_that_was_trained_again_is_refused(reread):
    def retrain(result):
        result["tests"]["old→old"]["fingerprints"] = ["new", "new"]
        result["fingerprint"] = "new"

    with pytest.raises(UserError, match="cells/open-class/none/seed0 was tested with a model"):
        reread(retrain, "models/old-classes-seed0")


def test_a_report_of_an_unfinished_benchmark_takes_the_seeds_that_are_complete(
    benchmark, results, grid
):
    longer = replace(grid, seeds=(0, 1, 2))
    partial = plan_benchmark(longer, benchmark.workspace.out, device="cpu").results()
    assert partial.seeds == (0, 1)
    assert partial.by_job.keys() == results.by_job.keys()
    lacks = len(benchmark.jobs) // 2
    assert partial.missing_jobs == {2: lacks}
    assert f"Seed 2 is left out: it lacks {lacks} jobs." in render_markdown(partial)


def test_a_report_of_a_first_seed_shows_the_cells_that_are_finished(benchmark, grid, tmp_path):
    for name in ("models", "cells/extended-data"):
        shutil.copytree(benchmark.workspace.out / name, tmp_path / name)
    shutil.rmtree(tmp_path / "models/free-all-seed1")  # as if it were still to come
    partial = read_results(grid, benchmark.jobs, tmp_path)
    assert (partial.seeds, partial.scenarios) == ((0,), ["extended-data"])
    text = render_markdown(partial)
    assert "over 1 seed." in text
    assert "Upgrade chain" not in text
    shutil.rmtree(tmp_path / "cells")
    with pytest.raises(UserError, match="no finished result of this benchmark yet"):
        read_results(grid, benchmark.jobs, tmp_path)


def test_one_job_more_in_one_seed_leaves_no_other_seed_out(benchmark, results, grid, copied):
    shutil.rmtree(copied / "cells/open-class/procrustes/seed1")
    fewer = read_results(grid, benchmark.jobs, copied)
    assert (fewer.seeds, fewer.missing_jobs, fewer.unshared_jobs) == ((0, 1), {}, 1)
    assert results.by_job.keys() - fewer.by_job.keys() == {
        f"cells/open-class/procrustes/seed{seed}" for seed in (0, 1)
    }
    sentence = "1 finished job is left out: not every seed has the same."
    assert sentence in render_markdown(fewer)
    shutil.rmtree(copied / "models/old-images-seed1")  # and with it most of the second seed
    half = read_results(grid, benchmark.jobs, copied)
    assert (half.seeds, half.unshared_jobs) == ((0,), 0)
    assert half.has_cell("open-class", "procrustes")
    for missing in half.missing_jobs.values():
        printed = io.StringIO()
        print_benchmark(half, Console(file=printed))
        assert f"Seed 1 is left out: it lacks {missing} jobs." in printed.getvalue()


def test_the_seeds_are_chosen_that_keep_the_most_results():
    models, cells = {"models/old"}, [f"cells/{name}" for name in "abcd"]
    few, many = frozenset({*models, *cells[:1]}), frozenset({*models, *cells})
    assert shared_jobs([many, few, few]) == many
    assert shared_jobs([many, few, few, few]) == few, "as many results, more seeds"
    other = frozenset({*models, *cells[1:]})
    assert shared_jobs([many, other, few]) == other
    assert shared_jobs([many, frozenset(models), frozenset(models)]) == many, "a cell counts"


def test_results_need_at_least_one_finished_job(grid, tmp_path):
    workspace = Workspace(grid, tmp_path)
    with pytest.raises(UserError, match="holds no finished result"):
        read_results(grid, make_jobs(grid, workspace.all_training_images), tmp_path)


@pytest.fixture(scope="module")
def rows(finished):
    return list(csv.DictReader(io.StringIO(as_csv(finished[1]))))


def test_a_row_says_what_its_value_is_and_no_two_rows_say_the_same(results, grid, rows):
    columns = ["data", "scenario", "method", "seed", "test", "metric", "value", "low", "high"]
    assert list(rows[0]) == columns
    keys = [tuple(row[column] for column in columns[:6]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {row["data"] for row in rows} == {grid.test}
    assert {row["scenario"] for row in rows} == {*grid.scenarios, "chain"}
    assert {row["method"] for row in rows} == {*grid.methods, "old", "free"}
    assert {row["seed"] for row in rows} == {str(seed) for seed in results.seeds}
    chain = {row["test"] for row in rows if row["scenario"] == "chain"}
    assert chain == {f"v{query}→v{gallery}" for query in (1, 2, 3) for gallery in (1, 2, 3)}
    tests = {row["test"] for row in rows if row["scenario"] != "chain"}
    assert tests == {
        "old→old", "new→old", "new→new", "blend→old", "mixed raw", "mixed standardised",
        "old at old threshold", "cross at old threshold", "mapped at old threshold",
        "scaled at old threshold", "between→old", "between→between",
    }  # fmt: skip


def test_every_value_of_every_job_is_there_with_its_interval(results, rows):
    by_key = {
        (row["scenario"], row["method"], row["seed"], row["test"], row["metric"]): row
        for row in rows
    }

    def checked(folder, scenario, method, seed, test, kind="metrics", name=None):
        for metric, value in results.by_job[folder]["tests"][test][kind].items():
            row = by_key[scenario, method, str(seed), name or test, metric]
            assert float(row["value"]) == pytest.approx(value, abs=1e-6)
            samples = results.samples(folder, test, metric).astype(np.float64)
            ends = estimate(np.array([value]), samples[None], classes=results.query_classes)
            written = [float(row["low"]), float(row["high"])]
            assert written == pytest.approx([ends.low, ends.high], abs=1e-6)

    for seed in (0, 1):
        for scenario, old in (("extended-data", "images"), ("open-class", "classes")):
            checked(f"models/old-{old}-seed{seed}", scenario, "old", seed, "old→old")
            for method in ("none", "unibct-plus", "procrustes"):
                cell = f"cells/{scenario}/{method}/seed{seed}"
                for test in ("new→old", "new→new", "blend→old"):
                    checked(cell, scenario, method, seed, test)
                checked(cell, scenario, method, seed, "new→old", "flips")
        checked(f"models/free-open-class-seed{seed}", "open-class", "free", seed, "new→new")
        version = f"chains/unibct-plus/seed{seed}/v3"
        checked(version, "chain", "unibct-plus", seed, "v3→v1")
        first = f"models/old-images-seed{seed}"
        checked(first, "chain", "unibct-plus", seed, "old→old", name="v1→v1")
    assert by_key["open-class", "none", "0", "blend→old", "alpha"]["value"] == "0.500000"
    assert by_key["open-class", "none", "0", "blend→old", "alpha"]["low"] == ""
    assert by_key["open-class", "none", "0", "mixed raw", "chosen"]["value"] == "1.000000"
    mean = by_key["open-class", "unibct-plus", "1", "mixed standardised", "top-1 mean"]
    where = ("mixed standardised", "top-1 mean")
    expected = results.in_cell("open-class", "unibct-plus", *where).values[1]
    assert float(mean["value"]) == pytest.approx(expected, abs=1e-6)
    assert float(mean["low"]) <= expected <= float(mean["high"])
    stored = results.by_job["cells/open-class/unibct-plus/seed1"]["at_old_threshold"]
    scaled = [
        by_key["open-class", "unibct-plus", "1", "scaled at old threshold", metric]
        for metric in ("TAR", "FAR", "score scale")
    ]
    expected = [*stored["ways"]["scaled"].values(), stored["score_scale"]]
    assert [float(row["value"]) for row in scaled] == pytest.approx(expected, abs=1e-6)
    assert float(scaled[0]["low"]) <= expected[0] <= float(scaled[0]["high"])
    assert scaled[2]["low"] == ""
    assert ("open-class", "none", "1", "scaled at old threshold", "TAR") not in by_key
