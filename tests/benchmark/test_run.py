import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from tests.conftest import TINY_OPTIONS
from tests.forked_commands import ForkedCommand, run_forked
from tests.models.cases import small_model
from unibct.benchmark.grid import Grid
from unibct.benchmark.run import plan_benchmark, run_benchmark
from unibct.benchmark.workers import Board
from unibct.data.readers import open_images
from unibct.errors import UserError
from unibct.models.model_folder import save_model
from unibct.report.pages import render_markdown


def test_the_time_left_is_that_of_the_work_at_the_finished_jobs_rate(
    benchmark, results, grid, tmp_path
):
    assert benchmark.seconds_left() == 0
    assert plan_benchmark(grid, tmp_path, device="cpu", read_images=False).seconds_left() is None
    wider = replace(grid, seeds=(0, 1, 2))
    more = plan_benchmark(wider, benchmark.workspace.out, device="cpu", workers=2)
    work = sum(job.work for job in more.jobs if job.seed == 2)
    rates = [r["cost"]["images_per_second"] for r in results.by_job.values() if "cost" in r]
    assert more.seconds_left() == pytest.approx(work / np.median(rates) / 2)


def test_finished_jobs_never_run_again(benchmark, results):
    out = benchmark.workspace.out
    times = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    boards: list[Board] = []
    again = run_benchmark(benchmark, lambda board, job: boards.append(board))
    assert again.by_job == results.by_job
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()} == times
    assert not benchmark.unfinished_jobs
    assert set(boards[-1].states.values()) == {"finished"}


@pytest.mark.slow
def test_killed_at_any_point_it_goes_on_to_the_same_results(results, grid, tmp_path):
    out = tmp_path / "killed"
    arguments = [
        "unibct", "benchmark", grid.data, "--test", grid.test,
        "--scenarios", "open-class", "--methods", "unibct-plus", "--seeds", "0,1",
        "--chain", "none", "--workers", "2", "--device", "cpu", "--out", str(out),
        *TINY_OPTIONS,
    ]  # fmt: skip
    for kill_after in (1, 3):  # finished jobs
        with ForkedCommand(*arguments) as command:
            process = command.process
            while len(list(out.rglob("result.json"))) < kill_after and process.is_alive():
                time.sleep(0.02)
            workers = children(process.pid)
        assert workers
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline, "workers must end with their parent"
            time.sleep(0.05)
    run_forked(*arguments)
    for seed in (0, 1):
        folder = f"cells/open-class/unibct-plus/seed{seed}"
        stored = json.loads((out / folder / "result.json").read_text())
        assert stored["fingerprint"] == results.by_job[folder]["fingerprint"]
        assert stored["tests"] == results.by_job[folder]["tests"]


def children(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.mark.slow
def test_a_failed_job_is_named_stops_only_its_dependents_and_is_tried_again(grid, tmp_path):
    scenarios = ("extended-data", "open-class")
    small = Grid(grid.data, grid.test, grid.recipe, scenarios, ("none",), (0,), ())
    benchmark = plan_benchmark(small, tmp_path, workers=1, device="cpu")
    (tmp_path / ".mine.tmp").write_text("not ours")
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells/.result.json.x.tmp").write_text("left by a killed run")
    spoilt = tmp_path / "models/old-classes-seed0/model"
    spoilt.mkdir(parents=True)
    (spoilt / "model.json").write_text("{")
    failed = r"1 of 6 jobs failed and 1 more.*old-classes-seed0: .*cannot be read"
    with pytest.raises(UserError, match=failed):
        run_benchmark(benchmark)
    error = tmp_path / "models/old-classes-seed0/error.txt"
    assert "cannot be read" in error.read_text()
    assert [job.folder for job in benchmark.unfinished_jobs] == [
        "models/old-classes-seed0",
        "cells/open-class/none/seed0",
    ]
    assert benchmark.results().has_cell("extended-data", "none")
    assert "| none | within noise" in render_markdown(benchmark.results())
    (spoilt / "model.json").unlink()
    assert run_benchmark(benchmark).has_cell("open-class", "none")
    assert not error.exists()
    assert [p.name for p in tmp_path.rglob("*.tmp")] == [".mine.tmp"]


def test_first_weights_that_have_learnt_a_test_class_are_refused(grid, tmp_path):
    known = open_images(grid.test).class_names[0]
    for names in (("another",), ("another", known)):
        weights = tmp_path / str(len(names))
        save_model(replace(small_model(), class_names=names, class_weights=None), weights)
        begun = replace(grid, recipe=grid.recipe.updated(weights=str(weights)))
        if known not in names:
            plan_benchmark(begun, tmp_path / "out")
        else:
            with pytest.raises(UserError, match=r"weights \(.*\) have learnt 1 of the \d+ classes"):
                plan_benchmark(begun, tmp_path / "out")


def test_two_processes_do_not_run_in_one_folder(grid, tmp_path):
    small = Grid(grid.data, grid.test, grid.recipe, ("open-class",), ("none",), (0,), ())
    benchmark = plan_benchmark(small, tmp_path, workers=1, device="cpu")
    another = "another process is running a benchmark in"
    with FileLock(tmp_path / ".lock"), pytest.raises(UserError, match=another):
        run_benchmark(benchmark)
    assert not list(tmp_path.rglob("result.json"))


def test_more_seeds_and_methods_are_added_to_what_is_there(benchmark, grid):
    wider = Grid(grid.data, grid.test, grid.recipe, ("open-class",), ("none", "linear"), (0, 1), ())
    more = plan_benchmark(wider, benchmark.workspace.out, workers=1, device="cpu")
    assert [job.folder for job in more.unfinished_jobs] == [
        f"cells/open-class/linear/seed{seed}" for seed in (0, 1)
    ]
    assert run_benchmark(more).has_cell("open-class", "linear")


def test_validation_images_that_cannot_be_searched_or_have_changed_are_named(grid, tmp_path):
    validation = tmp_path / "validation"
    for number, name in enumerate("abc"):
        (validation / name).mkdir(parents=True)
        Image.new("L", (32, 32), 50 * number).save(validation / name / "0.png")
    chooser = replace(grid, validation=str(validation))
    with pytest.raises(UserError, match="validation: fewer than two classes have two images"):
        plan_benchmark(chooser, tmp_path / "out", device="cpu")
    for name in "abc":
        shutil.copy(validation / name / "0.png", validation / name / "1.png")
    planned = plan_benchmark(chooser, tmp_path / "out", device="cpu")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "benchmark.json").write_text(json.dumps(planned.settings))
    Image.new("L", (32, 32), 255).save(validation / "a" / "0.png")
    changed = "some of its validation images have changed since; choose another folder"
    with pytest.raises(UserError, match=changed):
        plan_benchmark(chooser, tmp_path / "out", device="cpu")


@pytest.mark.slow
def test_cells_without_a_free_model_make_their_warm_up_once(grid, tmp_path):
    methods = ("unibct-centroid", "unibct")
    chosen = {"scenarios": ("open-class",), "methods": methods, "seeds": (0,), "chain_methods": ()}
    small = replace(grid, **chosen)
    benchmark = plan_benchmark(small, tmp_path, only=methods, workers=2, device="cpu")
    at_once: list[int] = []

    def count(board: Board, _job: object) -> None:
        running = [f for f, state in board.states.items() if state == "running"]
        at_once.append(sum(folder.startswith("cells/") for folder in running))

    run_benchmark(benchmark, count)
    assert max(at_once) == 1
    logs = [tmp_path / f"cells/open-class/{m}/seed0/model/metrics.csv" for m in methods]
    # The second one's log begins with the warm-up of the first one, seconds and all.
    first, second = (log.read_text().splitlines()[1] for log in logs)
    assert first == second
