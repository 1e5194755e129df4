import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from unibct.benchmark.cell_values import at_old_threshold, in_mixed_gallery
from unibct.benchmark.jobs import make_jobs
from unibct.benchmark.result_reading import read_results, shared_jobs
from unibct.benchmark.results_csv import as_csv
from unibct.benchmark.run import plan_benchmark
from unibct.benchmark.workspace import VALIDATION_PIXELS, Workspace
from unibct.errors import UserError
from unibct.report.blended_table import blended_table
from unibct.report.mixed_table import mixed_table
from unibct.report.old_threshold_table import old_threshold_table
from unibct.report.pages.benchmark import render_markdown
from unibct.report.terminal import print_benchmark


def test_a_test_of_a_model_that_was_trained_again_is_refused(finished, tmp_path):
    benchmark, _ = finished
    out = tmp_path / "copy"
    shutil.copytree(benchmark.workspace.out, out)
    path = out / "models/old-classes-seed0/result.json"
    result = json.loads(path.read_text())
    result["tests"]["old→old"]["fingerprints"] = ["new", "new"]
    path.write_text(json.dumps(result | {"fingerprint": "new"}))
    with pytest.raises(UserError, match="cells/open-class/none/seed0 was tested with a model"):
        read_results(benchmark.workspace.grid, benchmark.jobs, out)


def test_results_of_an_earlier_version_are_read_together_with_new_ones(finished, tmp_path):
    """It knew no mAP, flips, blends, old thresholds and mixed galleries."""
    benchmark, results = finished
    out = tmp_path / "copy"
    shutil.copytree(benchmark.workspace.out, out)
    for folder in ("models/old-classes-seed0", "cells/open-class/none/seed0"):
        result = json.loads((out / folder / "result.json").read_text())
        result["tests"].pop("blend→old", None)
        result.pop("mixed_galleries", None)
        result.pop("at_old_threshold", None)
        for test in result["tests"].values():
            del test["metrics"]["mAP"]
            test.pop("flips", None)
        (out / folder / "result.json").write_text(json.dumps(result))
    mixed = read_results(benchmark.workspace.grid, benchmark.jobs, out)
    assert mixed.metrics == [metric for metric in results.metrics if metric != "mAP"]
    for metric in mixed.metrics:
        for one, other in (
            (
                mixed.cross("open-class", "none", metric),
                results.cross("open-class", "none", metric),
            ),
            (mixed.old_self("open-class", metric), results.old_self("open-class", metric)),
        ):
            assert np.array_equal(one.values, other.values)
            assert np.array_equal(one.samples, other.samples)
    assert "mAP" not in render_markdown(mixed)
    assert mixed.flips("open-class", "none", "nfr") is None
    assert mixed.flips("open-class", "unibct-plus", "nfr") is not None
    assert mixed.blended("open-class", "none", "top-1") is None
    assert in_mixed_gallery(mixed, "open-class", "none", "raw", "top-1 mean") is None
    assert in_mixed_gallery(mixed, "open-class", "unibct-plus", "raw", "top-1 mean") is not None
    assert at_old_threshold(mixed, "open-class", "none", "old", "TAR") is None
    assert at_old_threshold(mixed, "open-class", "unibct-plus", "scaled", "TAR") is not None
    for table in (blended_table(mixed), mixed_table(mixed), old_threshold_table(mixed)):
        scenarios = [row[0].text for row in table.rows if row[0].text]
        assert scenarios == ["extended-data", "open-class"]
        methods = [row[1].text for row in table.rows if row[1].text]
        assert methods == ["none", "unibct-plus", "procrustes", "unibct-plus", "procrustes"]
    assert as_csv(mixed).count("blend→old") < as_csv(results).count("blend→old")


def test_a_report_of_an_unfinished_benchmark_takes_the_seeds_that_are_complete(finished, grid):
    benchmark, results = finished
    longer = replace(grid, seeds=(0, 1, 2))
    partial = plan_benchmark(longer, benchmark.workspace.out, device="cpu").results()
    assert partial.seeds == (0, 1)
    assert partial.by_job.keys() == results.by_job.keys()
    assert partial.missing_jobs == {2: len(benchmark.jobs) // 2}
    assert f"Seed 2 is left out: it lacks {len(benchmark.jobs) // 2} jobs." in render_markdown(
        partial
    )


def test_a_report_of_a_first_seed_shows_the_cells_that_are_finished(finished, grid, tmp_path):
    benchmark, _ = finished
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


def test_one_job_more_in_one_seed_leaves_no_other_seed_out(finished, grid, tmp_path):
    benchmark, results = finished
    ignored = shutil.ignore_patterns("cache", "model", "embeddings")
    shutil.copytree(benchmark.workspace.out, tmp_path, ignore=ignored, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "cells/open-class/procrustes/seed1")
    fewer = read_results(grid, benchmark.jobs, tmp_path)
    assert (fewer.seeds, fewer.missing_jobs, fewer.unshared_jobs) == ((0, 1), {}, 1)
    assert results.by_job.keys() - fewer.by_job.keys() == {
        f"cells/open-class/procrustes/seed{seed}" for seed in (0, 1)
    }
    sentence = "1 finished job is left out: not every seed has the same."
    assert sentence in render_markdown(fewer)
    shutil.rmtree(tmp_path / "models/old-images-seed1")  # and with it most of the second seed
    half = read_results(grid, benchmark.jobs, tmp_path)
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


def test_results_with_other_validation_images_are_left_out_and_counted(finished, tmp_path):
    benchmark, _ = finished
    out = tmp_path / "b"
    shutil.copytree(benchmark.workspace.out, out)
    cells = sorted((out / "cells/open-class/unibct-plus").rglob("result.json"))
    for path in cells:
        path.write_text(json.dumps(json.loads(path.read_text()) | {VALIDATION_PIXELS: "other"}))
    results = read_results(benchmark.workspace.grid, benchmark.jobs, out)
    assert results.outdated_jobs == len(cells) == 2
    note = "2 finished jobs are left out, measured with other validation images"
    assert note in render_markdown(results)
