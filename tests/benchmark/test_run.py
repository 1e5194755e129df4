import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

from tests.benchmark.embedded_jobs import jobs_of
from tests.conftest import TINY_OPTIONS
from tests.forked_commands import ForkedCommand, run_forked
from tests.models.cases import small_model
from tests.notes import Notes
from unibct import progress
from unibct.benchmark import run as forecast
from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import Job
from unibct.benchmark.run import (
    RunConditions,
    forecast_seconds,
    plan_benchmark,
    run_benchmark,
    schedule,
    trial_rate,
)
from unibct.benchmark.workers import Board
from unibct.data.readers import open_images
from unibct.data.scenarios import split
from unibct.errors import UserError
from unibct.files import write_json
from unibct.models.model_folder import save_model
from unibct.report.benchmark_page import render_markdown


def test_the_forecast_counts_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "trial_rate", lambda *_: 100.0)  # given, not measured
    jobs = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])
    one_worker = RunConditions(
        workers=1, threads=1, device=torch.device("cpu"), classes=10, test_images=100, scores=0
    )
    one = forecast_seconds(jobs, tmp_path, one_worker)
    labels = open_images("glyphs:train").labels
    parts = split(labels, "open-class")
    assert sum(job.work for job in jobs) == 6 * (len(parts.old) + len(parts.new))
    trained = [job for job in jobs if job.training is not None]
    work = sum(job.work + 100 / 3 for job in trained)  # to embed is a third of a training step
    assert one == pytest.approx(work / 100.0)
    two = forecast_seconds(jobs, tmp_path, replace(one_worker, workers=2))
    assert 0 < two < one


def test_what_is_measured_again_takes_the_time_of_its_tests(tmp_path):
    jobs = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])
    for job in jobs:
        content = {"architecture": "resnet-small", "cost": {"images_per_second": 1.0}}
        write_json(tmp_path / job.folder / "result.json", content)
    one_worker = RunConditions(
        workers=1, threads=1, device=torch.device("cpu"), classes=10, test_images=100, scores=10**6
    )
    assert forecast_seconds(jobs, tmp_path, one_worker) == 0
    again = forecast_seconds(jobs, tmp_path, one_worker, again=jobs)
    assert again == pytest.approx(1 + 1 + 7)  # two models' self tests, and a cell
    assert forecast_seconds(jobs, tmp_path, one_worker, again=jobs[:1]) == pytest.approx(1)


def test_a_rate_is_measured_on_a_few_steps():
    recipe = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])[0]
    assert recipe.training is not None
    small = recipe.training.recipe.updated(batch_size=2)
    assert trial_rate(small, 10, 1, torch.device("cpu"), steps=6) > 0


def test_the_forecast_waits_for_what_a_job_needs():
    jobs = [Job("a", 0, ()), Job("b", 0, (), needs=("a",)), Job("c", 0, ()), Job("d", 0, ())]
    costs = {"a": 3.0, "b": 4.0, "c": 1.0, "d": 1.0}  # given, not measured
    assert schedule(jobs, costs, 1) == 9
    assert schedule(jobs, costs, 2) == 7  # c and d run next to a, then b alone
    assert schedule(jobs, costs, 9) == 7
    assert schedule([], {}, 2) == 0


def test_finished_jobs_never_run_again(finished):
    benchmark, results = finished
    out = benchmark.workspace.out
    times = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    boards: list[Board] = []
    again = run_benchmark(benchmark, lambda board, job: boards.append(board))
    assert again.by_job == results.by_job
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()} == times
    assert not benchmark.unfinished_jobs
    assert set(boards[-1].states.values()) == {"finished"}


@pytest.mark.slow
def test_killed_at_any_point_it_goes_on_to_the_same_results(finished, grid, tmp_path):
    _, results = finished
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
    small = Grid(
        grid.data, grid.test, grid.recipe, ("extended-data", "open-class"), ("none",), (0,), ()
    )
    benchmark = plan_benchmark(small, tmp_path, workers=1, device="cpu")
    (tmp_path / ".mine.tmp").write_text("not ours")
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells/.result.json.x.tmp").write_text("left by a killed run")
    spoilt = tmp_path / "models/old-classes-seed0/model"
    spoilt.mkdir(parents=True)
    (spoilt / "model.json").write_text("{")
    with pytest.raises(
        UserError, match=r"1 of 6 jobs failed and 1 more.*old-classes-seed0: .*cannot be read"
    ):
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
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(UserError, match="another process is running a benchmark in"),
    ):
        run_benchmark(benchmark)
    assert not list(tmp_path.rglob("result.json"))


def test_more_seeds_and_methods_are_added_to_what_is_there(finished, grid):
    benchmark, _ = finished
    wider = Grid(grid.data, grid.test, grid.recipe, ("open-class",), ("none", "linear"), (0, 1), ())
    more = plan_benchmark(wider, benchmark.workspace.out, workers=1, device="cpu")
    assert [job.folder for job in more.unfinished_jobs] == [
        f"cells/open-class/linear/seed{seed}" for seed in (0, 1)
    ]
    assert run_benchmark(more).has_cell("open-class", "linear")


def test_a_second_measurement_is_forecast(finished, grid):
    out = finished[0].workspace.out
    assert plan_benchmark(grid, out, device="cpu", read_images=False).seconds_left() == 0
    again = plan_benchmark(grid, out, device="cpu", read_images=False, measure_again=True)
    assert len(again.unfinished_jobs) == len(again.jobs)
    assert again.seconds_left() > 0


def test_a_second_measurement_trains_nothing(finished, grid):
    notes = Notes()
    wider = replace(grid, methods=(*grid.methods, "lce"), seeds=(0, 1, 2))
    out = finished[0].workspace.out
    with progress.shown(notes):
        again = plan_benchmark(wider, out, device="cpu", measure_again=True)
    assert all((out / job.folder / "result.json").is_file() for job in again.chosen_jobs)
    assert "cells/open-class/unibct-plus/seed1" in {job.folder for job in again.chosen_jobs}
    left_out = sum(job.seed == 2 or "/lce/" in job.folder for job in again.jobs)
    assert any(
        text.startswith(f"{left_out} of {len(again.jobs)} jobs are not") for text in notes.texts
    )


def test_a_second_measurement_of_nothing_is_refused(grid, tmp_path):
    with pytest.raises(UserError, match="has no finished job that could be measured again"):
        plan_benchmark(grid, tmp_path / "mistyped", device="cpu", measure_again=True)


def test_a_second_measurement_loses_nothing_if_a_model_is_gone(finished, grid, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished[0].workspace.out, out)
    cell = out / "cells/open-class/unibct-plus/seed0"
    before = json.loads((cell / "result.json").read_text())
    assert "between→old" in before["tests"]
    shutil.rmtree(cell / "model")
    again = plan_benchmark(
        grid, out, only=["open-class/unibct-plus"], workers=1, device="cpu", measure_again=True
    )
    gone = "model is gone, and without it these cannot be measured again: between→between, betw"
    with pytest.raises(UserError, match=gone):
        run_benchmark(again)
    assert json.loads((cell / "result.json").read_text()) == before


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
    changed = "some of its validation images have changed since; --measure-again runs its tests"
    with pytest.raises(UserError, match=changed):
        plan_benchmark(chooser, tmp_path / "out", device="cpu")


@pytest.fixture
def earlier(finished, tmp_path):
    """A copy of a finished benchmark, whose results do not name their validation images."""
    out = tmp_path / "earlier"
    shutil.copytree(finished[0].workspace.out, out)
    for path in out.rglob("result.json"):
        result = json.loads(path.read_text())
        assert result.pop("validation_pixels") is None
        path.write_text(json.dumps(result))
    return out


def test_a_stopped_second_measurement_goes_on_and_is_not_mixed(
    earlier, grid, tmp_path, monkeypatch
):
    """The results are an earlier version's, and there were no validation images."""

    def stopped(*_, **__):
        raise KeyboardInterrupt

    validation = tmp_path / "validation"
    images = open_images("glyphs:val")
    for row in np.flatnonzero((images.labels >= 20) & (images.labels < 23)):
        path = validation / f"validation {images.labels[row]}" / f"{row:04}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(images.read(images.ids[row])).save(path)
    small = replace(grid, scenarios=("open-class",), methods=("none",), seeds=(0,))
    small = replace(small, chain_methods=())
    assert not plan_benchmark(small, earlier, device="cpu").unfinished_jobs
    chooser = replace(small, validation=str(validation))
    for _ in range(2):  # the second time, results name their validation images
        again = plan_benchmark(chooser, earlier, workers=1, device="cpu", measure_again=True)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("unibct.benchmark.run.run_jobs", stopped)
            run_benchmark(again)
    resumed = plan_benchmark(chooser, earlier, workers=1, device="cpu")
    assert len(resumed.unfinished_jobs) == 3
    with pytest.raises(UserError, match="no finished result of this benchmark yet"):
        resumed.results()
    cell = run_benchmark(resumed).by_job["cells/open-class/none/seed0"]
    assert cell["tests"]["blend→old"]["chosen_on"]["data"] == str(validation)
    assert not plan_benchmark(chooser, earlier, device="cpu").unfinished_jobs
    others = plan_benchmark(replace(chooser, methods=("unibct-plus",)), earlier, device="cpu")
    assert [job.folder for job in others.unfinished_jobs] == ["cells/open-class/unibct-plus/seed0"]


@pytest.mark.slow
def test_cells_without_a_free_model_make_their_warm_up_once(grid, tmp_path):
    methods = ("unibct-centroid", "unibct")
    small = replace(
        grid, scenarios=("open-class",), methods=methods, seeds=(0,), chain_methods=()
    )  # fmt: skip
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
