import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image
from unibct.benchmark.statistics import estimate
from unibct.evaluation.evaluate import evaluate_upgrade, search_test

from tests.conftest import TINY, tags_of_offline_page
from unibct import cli
from unibct.benchmark.forecast import forecast, schedule
from unibct.benchmark.jobs import (
    ALL_METHODS,
    Grid,
    Job,
    make_grid,
    make_jobs,
    select_jobs,
    training_rows,
)
from unibct.benchmark.results import Measured, as_csv, read_results
from unibct.benchmark.run import plan_benchmark, run_benchmark
from unibct.benchmark.workers import Board, Crew
from unibct.benchmark.workspace import Bench
from unibct.data.readers.table import open_images
from unibct.data.scenarios import split
from unibct.embeddings.extraction import embed_images, open_embeddings
from unibct.errors import UserError
from unibct.maps.adapter import ADAPTERS, fit_adapter
from unibct.models.model import load_model
from unibct.report.live import Gains
from unibct.report.pages.benchmark import command, render_markdown, write_benchmark_report
from unibct.report.tables import all_tables, chain_averages
from unibct.training.recipe import load_recipe

METHODS = ("none", "unibct-plus", "procrustes")


@pytest.fixture(scope="module")
def unseen_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("unseen")
    images = open_images("glyphs:val")
    for number, (image_id, label) in enumerate(zip(images.ids, images.labels, strict=True)):
        if label < 8:
            folder = root / f"unseen {label}"
            folder.mkdir(exist_ok=True)
            Image.fromarray(images.read(image_id)).save(folder / f"{number:04}.png")
    return root


@pytest.fixture(scope="module")
def grid(photo_folder, unseen_folder):
    return Grid(
        str(photo_folder),
        str(unseen_folder),
        load_recipe("glyphs", TINY),
        ("extended-data", "open-class"),
        METHODS,
        (0, 1),
        ("unibct-plus",),
    )


@pytest.fixture(scope="module")
def finished(grid, tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmark")
    benchmark = plan_benchmark(grid, out, workers=2, device="cpu")
    return benchmark, run_benchmark(benchmark)


def jobs_of(**changes):
    return make_jobs(make_grid(**changes), open_images("glyphs:train"))


def test_five_scenarios_share_two_old_and_four_free_models():
    jobs = jobs_of(seeds=[3], chain=[])
    assert [job.folder for job in jobs if job.folder.startswith("models/")] == [
        "models/old-images-seed3",
        "models/free-all-seed3",
        "models/free-open-data-seed3",
        "models/old-classes-seed3",
        "models/free-open-class-seed3",
        "models/free-identical-data-seed3",
    ]
    cells = [job.folder.split("/")[1:3] for job in jobs if job.folder.startswith("cells/")]
    assert len(cells) == 5 * 8 - 2
    assert ["open-class", "bct"] not in cells
    assert ["extended-class", "bct"] not in cells


def test_every_job_comes_after_those_it_needs_and_trains_on_its_scenarios_images():
    labels = open_images("glyphs:train").labels
    seen = set()
    for job in jobs_of(seeds=[0, 1], methods=["all"]):
        assert set(job.needs) <= seen
        seen.add(job.folder)
        if job.training is not None and job.folder.startswith("cells/"):
            scenario = job.folder.split("/")[1]
            rows = training_rows(labels, job.training.images, job.seed)
            assert np.array_equal(rows, split(labels, scenario, seed=666 + job.seed).new)
            assert job.training.recipe.seed == 2 * job.seed + 1
            larger = scenario == "identical-data"
            assert ("wide" in job.training.recipe.architecture) == larger
    assert len([f for f in seen if f.startswith("cells/open-data/")]) == 2 * len(ALL_METHODS)


def test_versions_of_a_chain_learn_from_nested_images_against_the_one_before():
    labels = open_images("glyphs:train").labels
    chain = {j.folder: j for j in jobs_of(scenarios=["open-data"], methods=["none"], seeds=[0])}
    second, third = chain["chains/unibct/seed0/v2"], chain["chains/unibct/seed0/v3"]
    assert second.training.old == "models/old-images-seed0"
    assert third.training.old == second.folder
    first = split(labels, "extended-data", seed=666).old
    middle = training_rows(labels, second.training.images, 0)
    assert set(first) < set(middle) < set(training_rows(labels, third.training.images, 0))
    assert len(training_rows(labels, third.training.images, 0)) == len(labels)
    assert len({chain[f].training.recipe.seed for f in (second.needs[0], *third.needs)}) == 2
    assert [name for name, *_ in third.tests] == ["v3→v1", "v1→v3", "v3→v2", "v2→v3", "v3→v3"]


def test_only_takes_what_it_names_and_what_that_needs():
    jobs = jobs_of()
    chosen = [job.folder for job in select_jobs(jobs, ["open-class/unibct"])]
    assert "cells/open-class/unibct/seed2" in chosen
    assert "models/old-classes-seed2" in chosen
    assert all("open-class" in f or "old-classes" in f for f in chosen)
    assert len(chosen) == 9
    assert len(select_jobs(jobs, ["chains"])) == 3 * (1 + 2 * 2)
    assert select_jobs(jobs, []) == jobs
    with pytest.raises(UserError, match="--only closed: this benchmark has no such cell"):
        select_jobs(jobs, ["closed"])


def test_bad_grids_are_refused_before_any_work(photo_folder):
    with pytest.raises(UserError, match="unknown scenario"):
        make_grid(scenarios=["closed"])
    with pytest.raises(UserError, match=r"unknown method 'magic'.*procrustes.*or paper, or all"):
        make_grid(methods=["magic"])
    with pytest.raises(UserError, match="leaves none of 2 epochs"):
        make_grid(recipe=load_recipe("glyphs", ["epochs=2", "warmup_epochs=2"]))
    with pytest.raises(UserError, match="give the trials' seeds with --seeds"):
        make_grid(recipe=load_recipe("glyphs", ["seed=3"]))
    with pytest.raises(UserError, match="no upgrade chain"):
        make_grid(chain=["procrustes"])
    with pytest.raises(UserError, match="classes in common"):
        make_grid(str(photo_folder), test=str(photo_folder)).open()
    with pytest.raises(UserError, match="larger network than resnet50"):
        jobs_of(recipe=load_recipe("glyphs", ["architecture=resnet50"]))


def test_without_a_test_set_a_part_of_the_classes_is_held_out(photo_folder):
    train, test = make_grid(str(photo_folder)).open()
    assert len(test.class_names) == 3
    assert len(train.class_names) == 9
    assert not set(train.class_names) & set(test.class_names)


def test_too_few_classes_to_hold_some_out_are_refused(unseen_folder):
    with pytest.raises(UserError, match=r"has 8 classes; to hold some out .* give test images"):
        make_grid(str(unseen_folder)).open()


def test_too_few_classes_for_a_scenario_are_refused_at_planning(glyph_classes):
    few = glyph_classes.select(np.flatnonzero(glyph_classes.labels < 5))
    with pytest.raises(UserError, match="has 5 classes to train on: too few for open-class"):
        make_jobs(make_grid(scenarios=["open-class"]), few)
    assert make_jobs(make_grid(scenarios=["open-data"], chain=[]), few)


def test_a_live_table_has_no_gain_while_the_old_model_is_trained_again(finished, tmp_path):
    benchmark, results = finished
    gains = Gains(benchmark.bench.out)
    expected = results.cross("open-class", "none", "top-1") - results.old_self(
        "open-class", "top-1"
    )
    assert gains.of("open-class", "none", 1) == pytest.approx(100 * expected.values[1])
    assert np.isnan(Gains(tmp_path).of("open-class", "none", 1))


def test_a_warm_start_is_for_new_models_of_the_same_architecture():
    recipe = load_recipe("glyphs", ["warm_start=true"])
    jobs = {job.folder: job for job in jobs_of(recipe=recipe, seeds=[0])}
    warm = {f for f, job in jobs.items() if job.training and job.training.recipe.warm_start}
    assert "cells/open-class/unibct/seed0" in warm
    assert "chains/unibct/seed0/v2" in warm
    assert not any(f.startswith(("models/", "cells/identical-data")) for f in warm)
    # Nobody shares the warm-up of such a run.
    assert jobs["cells/open-class/unibct/seed0"].work == jobs["models/free-open-class-seed0"].work


def test_every_cell_is_what_the_commands_would_give_by_hand(finished):
    benchmark, results = finished
    bench = benchmark.bench
    test = bench.images[1]
    for seed in (0, 1):
        cell = bench.out / f"cells/open-class/unibct-plus/seed{seed}"
        new = load_model(cell / "model")
        old = load_model(bench.out / f"models/old-classes-seed{seed}" / "model")
        assert new.old_fingerprint == old.fingerprint
        vectors = [embed_images(model, test).vectors for model in (old, new)]
        by_hand = evaluate_upgrade(*vectors, test.labels)
        kept = json.loads((cell / "result.json").read_text())["tests"]
        assert kept["new→old"]["metrics"] == pytest.approx(by_hand.metrics("new→old"))
        assert kept["new→new"]["metrics"] == pytest.approx(by_hand.metrics("new→new"))
        for criterion in by_hand.criteria:
            metric = criterion.metric
            gain = results.cross("open-class", "unibct-plus", metric) - results.old_self(
                "open-class", metric
            )
            one = estimate(gain.values[[seed]], gain.samples[[seed]])
            assert one.mean == pytest.approx(criterion.difference)
            assert (one.low, one.high) == pytest.approx((criterion.low, criterion.high), abs=1e-5)


def test_an_adapter_maps_the_free_model_and_leaves_its_self_test(finished):
    benchmark, results = finished
    bench = benchmark.bench
    images = bench.training_images("new:open-class", 0)
    free, old = (load_model(bench.out / f"models/{n}-seed0" / "model") for n in
                 ("free-open-class", "old-classes"))  # fmt: skip
    fitted = fit_adapter(
        "procrustes",
        embed_images(free, images).vectors,
        embed_images(old, images).vectors,
        images.labels,
    )
    mapped = fitted(embed_images(free, bench.images[1]).vectors)
    cell = bench.out / "cells/open-class/procrustes/seed0"
    kept = open_embeddings(cell / "embeddings")
    assert np.allclose(kept.vectors, mapped, atol=1e-5)
    adapted = load_model(cell / "model")
    assert kept.fingerprint == adapted.fingerprint != free.fingerprint
    assert adapted.old_fingerprint == old.fingerprint
    for metric in results.metrics:
        own = results.new_self("open-class", "procrustes", metric).values
        assert np.array_equal(own, results.free_self("open-class", metric).values)


def test_a_chain_tests_all_pairs_of_versions(finished):
    benchmark, results = finished
    bench = benchmark.bench
    folders = ["models/old-images-seed0"] + [f"chains/unibct-plus/seed0/v{v}" for v in (2, 3)]
    vectors = [bench.vectors(folder) for folder in folders]
    matrix = np.zeros((3, 3))
    for q in range(3):
        for g in range(3):
            matrix[q, g] = search_test(vectors[q], vectors[g], bench.protocol).top(1)
            kept = results.versions("unibct-plus", q + 1, g + 1, "top-1").values[0]
            assert kept == pytest.approx(matrix[q, g])
    average, share = chain_averages(results, "unibct-plus", "top-1")
    seeds = [
        np.mean([results.versions("unibct-plus", q, g, "top-1").values[s]
                 for q in (1, 2, 3) for g in range(1, q + 1)]) for s in (0, 1)
    ]  # fmt: skip
    assert average.mean == pytest.approx(np.mean(seeds))
    assert re.fullmatch(r"\d of 6", share)


def test_finished_jobs_never_run_again(finished):
    benchmark, results = finished
    out = benchmark.bench.out
    times = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    boards: list[Board] = []
    again = run_benchmark(benchmark, lambda board, job: boards.append(board))
    assert again.found == results.found
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()} == times
    assert not benchmark.left
    assert set(boards[-1].states.values()) == {"finished"}


@pytest.mark.slow
def test_killed_at_any_point_it_goes_on_to_the_same_results(finished, grid, tmp_path):
    _, results = finished
    out = tmp_path / "killed"
    arguments = [
        sys.executable, "-m", "unibct", "benchmark", grid.data, "--test", grid.test,
        "--scenarios", "open-class", "--methods", "unibct-plus", "--seeds", "0,1",
        "--chain", "none", "--workers", "2", "--device", "cpu", "--out", str(out),
        *[a for item in TINY for a in ("--set", item)],
    ]  # fmt: skip
    for kill_after in (1, 3):  # finished jobs
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        while len(list(out.rglob("result.json"))) < kill_after and process.poll() is None:
            time.sleep(0.02)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert workers
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline, "workers must end with their parent"
            time.sleep(0.05)
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for seed in (0, 1):
        folder = f"cells/open-class/unibct-plus/seed{seed}"
        kept = json.loads((out / folder / "result.json").read_text())
        assert kept["fingerprint"] == results.found[folder]["fingerprint"]
        assert kept["tests"] == results.found[folder]["tests"]


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
    assert [job.folder for job in benchmark.left] == [
        "models/old-classes-seed0",
        "cells/open-class/none/seed0",
    ]
    assert benchmark.results().has("extended-data", "none")
    assert "| none | not compatible" in render_markdown(benchmark.results())
    (spoilt / "model.json").unlink()
    assert run_benchmark(benchmark).has("open-class", "none")
    assert not error.exists()
    assert [p.name for p in tmp_path.rglob("*.tmp")] == [".mine.tmp"]


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_job_only_and_is_replaced(grid, tmp_path, capsys):
    arguments = [
        "benchmark", grid.data, "--test", grid.test, "--scenarios", "extended-data,open-class",
        "--methods", "none", "--seeds", "0", "--chain", "none", "--workers", "1",
        "--device", "cpu", "--out", str(tmp_path), "--set", "warm_start=true",
        *[a for item in TINY for a in ("--set", item)],
    ]  # fmt: skip
    started = Crew._start

    def killed_at_first(crew):
        worker = started(crew)
        if not killed:
            killed.append(worker.process.pid)
            worker.process.kill()
        return worker

    killed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Crew, "_start", killed_at_first)
        with pytest.raises(SystemExit):
            cli.main(arguments)
    error = capsys.readouterr().err
    assert "1 of 6 jobs failed and 1 more were left out" in error
    assert "models/old-images-seed0: its process ended with code -9" in error
    assert "| none | not compatible" in (tmp_path / "report.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 0


def test_a_worker_that_dies_with_nothing_to_do_is_replaced(finished):
    benchmark, _ = finished
    job = benchmark.jobs[0]  # finished: a worker answers at once
    with Crew(benchmark.bench, 1, 1) as crew:
        assert crew.give(job)
        worker = crew.busy[0]
        assert not crew.give(job)  # it is the only one
        assert worker.pipe.recv() == ("finished", None)
        worker.job = None
        worker.process.kill()
        worker.process.join()
        assert crew.give(job)
        assert crew.busy[0].process.pid != worker.process.pid
        assert crew.busy[0].pipe.recv() == ("finished", None)


def test_two_processes_do_not_run_in_one_folder(grid, tmp_path):
    small = Grid(grid.data, grid.test, grid.recipe, ("open-class",), ("none",), (0,), ())
    benchmark = plan_benchmark(small, tmp_path, workers=1, device="cpu")
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(UserError, match="another process is running a benchmark in"),
    ):
        run_benchmark(benchmark)
    assert not list(tmp_path.rglob("result.json"))


def test_changed_and_unreadable_images_are_found_before_any_training(finished, grid, tmp_path):
    benchmark, _ = finished
    photos = tmp_path / "photos"
    shutil.copytree(grid.data, photos)
    moved = replace(grid, data=str(photos))
    out = benchmark.bench.out
    assert not plan_benchmark(moved, out, device="cpu").left  # the same images elsewhere
    first = min(photos.rglob("*.png"))
    Image.new("L", (32, 32)).save(first)
    with pytest.raises(UserError, match="some of its images have changed since; choose another"):
        plan_benchmark(moved, out, device="cpu")
    plan_benchmark(moved, out, device="cpu", read_images=False)  # for a report
    first.write_bytes(b"")
    with pytest.raises(UserError, match=f"1 unreadable image: .*{first.name}.*--skip-bad-images"):
        plan_benchmark(moved, tmp_path / "new", device="cpu")
    skipping = plan_benchmark(replace(moved, skip_bad=True), tmp_path / "new", device="cpu")
    assert len(skipping.bench.images[0]) == len(benchmark.bench.images[0]) - 1


def test_a_test_of_a_model_that_was_trained_anew_is_refused(finished, tmp_path):
    benchmark, _ = finished
    out = tmp_path / "copy"
    shutil.copytree(benchmark.bench.out, out)
    path = out / "models/old-classes-seed0/result.json"
    result = json.loads(path.read_text())
    result["tests"]["old→old"]["fingerprints"] = ["new", "new"]
    path.write_text(json.dumps(result | {"fingerprint": "new"}))
    with pytest.raises(UserError, match="cells/open-class/none/seed0 was tested with a model"):
        read_results(benchmark.bench.grid, benchmark.jobs, out)


def test_a_worker_that_dies_fails_its_job_only():
    jobs = [Job("a", 0, ()), Job("b", 0, (), needs=("a",)), Job("c", 0, ())]
    board = Board(jobs, states={job.folder: "waiting" for job in jobs})
    board.fail(jobs[0], "killed")
    assert board.states == {"a": "failed", "b": "left out", "c": "waiting"}
    assert board.ready() is jobs[2]


def test_a_folder_of_another_benchmark_is_refused(finished, grid):
    benchmark, _ = finished
    other = Grid(grid.data, grid.test, grid.recipe.updated(eta=3.0), seeds=(0,))
    with pytest.raises(UserError, match=r"its recipe.eta is 1.0, not 3.0; choose another --out"):
        plan_benchmark(other, benchmark.bench.out, device="cpu")


def test_more_seeds_and_methods_are_added_to_what_is_there(finished, grid):
    benchmark, _ = finished
    wider = Grid(grid.data, grid.test, grid.recipe, ("open-class",), ("none", "linear"), (0, 1), ())
    more = plan_benchmark(wider, benchmark.bench.out, workers=1, device="cpu")
    assert [job.folder for job in more.left] == [
        f"cells/open-class/linear/seed{seed}" for seed in (0, 1)
    ]
    assert run_benchmark(more).has("open-class", "linear")


def test_the_forecast_counts_what_is_left(tmp_path):
    jobs = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])
    options = {"threads": 1, "classes": 10, "test_images": 100, "scores": 0}
    import torch

    device = torch.device("cpu")
    one = forecast(jobs, tmp_path, workers=1, device=device, **options)
    assert one > 0
    labels = open_images("glyphs:train").labels
    parts = split(labels, "open-class")
    assert sum(job.work for job in jobs) == 6 * (len(parts.old) + len(parts.new))
    two = forecast(jobs, tmp_path, workers=2, device=device, **options)
    assert two < one


def test_the_forecast_waits_for_what_a_job_needs():
    jobs = [Job("a", 0, ()), Job("b", 0, (), needs=("a",)), Job("c", 0, ()), Job("d", 0, ())]
    costs = {"a": 3.0, "b": 4.0, "c": 1.0, "d": 1.0}  # given, not measured
    assert schedule(jobs, costs, 1) == 9
    assert schedule(jobs, costs, 2) == 7  # c and d beside a, then b alone
    assert schedule(jobs, costs, 9) == 7
    assert schedule([], {}, 2) == 0


def test_the_interval_over_classes_and_seeds_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    classes, repeats, trials = 150, 300, 250
    for seeds, between in ((3, 0.0), (3, 1.0), (3, 3.0), (5, 3.0)):
        held = 0
        for _ in range(trials):
            effects = rng.normal(size=(1, classes)) + rng.normal(size=(seeds, classes))
            effects = effects + rng.normal(0, between / np.sqrt(classes), (seeds, 1))
            draws = rng.multinomial(classes, np.full(classes, 1 / classes), size=repeats) / classes
            found = estimate(effects.mean(axis=1), effects @ draws.T, seed=int(rng.integers(1e9)))
            held += found.low <= 0 <= found.high
        assert 0.88 < held / trials <= 0.995


def test_one_seed_has_the_interval_over_classes_alone():
    samples = np.random.default_rng(0).normal(size=(1, 1000))
    found = estimate(np.array([0.1]), samples)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))
    assert found.mean == 0.1
    assert found.verdict == "within noise"


def test_differences_are_paired():
    shared = np.random.default_rng(0).normal(size=(3, 500))
    pair = Measured(shared.mean(1) + 1, shared + 1) - Measured(shared.mean(1), shared)
    found = pair.estimate
    assert (found.mean, found.low, found.high) == pytest.approx((1, 1, 1))


def test_the_report_is_whole_plain_and_made_without_training(finished, tmp_path):
    benchmark, results = finished
    write_benchmark_report(results, benchmark, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    opened = tags_of_offline_page(page)
    assert opened.count("svg") == 2 * 2 + 1
    assert opened.count("table") == len(all_tables(results))
    gain = results.cross("open-class", "unibct-plus", "top-1") - results.old_self(
        "open-class", "top-1"
    )
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    for text in (page, markdown):
        assert f"{100 * gain.estimate.mean:+.2f}" in text
        assert f"{100 * gain.estimate.low:+.2f} to {100 * gain.estimate.high:+.2f}" in text
        assert "paper 93.46" not in text  # unibct was not run
        assert "92.95" in text  # the paper's old model in open-class
    rows = list(csv.DictReader((tmp_path / "results.csv").open(encoding="utf-8")))
    kept = {(r["job"], r["test"], r["metric"]): float(r["value"]) for r in rows}
    for folder, result in results.found.items():
        for name, test in result["tests"].items():
            for metric, value in test["metrics"].items():
                assert kept[folder, name, metric] == pytest.approx(value, abs=1e-6)
    assert as_csv(results) == (tmp_path / "results.csv").read_text(encoding="utf-8")


def test_no_number_of_a_table_stands_without_its_interval(finished):
    _, results = finished
    for sheet in all_tables(results)[:-1]:  # the last one is the cost
        for row in sheet.rows:
            for cell in row:
                if re.fullmatch(r"[+-]?\d+\.\d+", cell.text):
                    assert re.search(r"\d to [+-]?\d", cell.small), (sheet.title, cell)


def test_the_report_names_the_command_that_makes_it():
    recipe = load_recipe("glyphs", ["eta=1.0", "refresh_epochs=[3, 4]"])
    grid = make_grid(quick=True, methods=["paper", "mlp"], chain=["unibct"], recipe=recipe)
    words = shlex.split(command(grid))[2:]
    options = {}
    for name, value in zip(words[1::2], words[2::2], strict=True):
        options.setdefault(name, []).append(value)
    again = make_grid(
        words[0],
        test=options["--test"][0],
        scenarios=options["--scenarios"][0].split(","),
        methods=options["--methods"][0].split(","),
        seeds=[int(seed) for seed in options["--seeds"][0].split(",")],
        chain=options["--chain"][0].split(","),
        recipe=load_recipe("glyphs", options["--set"]),
    )
    assert again == grid


def test_the_command_line_plans_without_writing_and_reports_without_training(
    finished, grid, tmp_path, capsys
):
    benchmark, _ = finished
    common = [
        "benchmark", grid.data, "--test", grid.test, "--methods", ",".join(METHODS),
        "--scenarios", "extended-data,open-class", "--chain", "unibct-plus",
        *[a for item in TINY for a in ("--set", item)],
    ]  # fmt: skip

    def run(*options):
        with pytest.raises(SystemExit) as stop:
            cli.main([*common, *options])
        return stop.value.code, capsys.readouterr()

    code, plan = run("--dry-run", "--seeds", "0,1", "--out", str(tmp_path / "none"))
    assert code == 0
    assert "cells/open-class/unibct-plus/seed1" in plan.out
    assert re.search(r"24 of 24 jobs to run, \d+ at a time .* about \d", plan.out)
    assert not (tmp_path / "none").exists()
    code, report = run("--report-only", "--seeds", "0,1", "--out", str(benchmark.bench.out))
    assert code == 0
    assert "Verdicts" in report.out
    assert (benchmark.bench.out / "report.html").is_file()
    code, nothing = run("--report-only", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "holds no finished result" in nothing.err
    code, bad = run("--seeds", "a", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "--seeds a: write numbers" in bad.err


def test_the_help_names_every_adapter():
    assert cli.ADAPTER_NAMES.split(", ") == list(ADAPTERS)


def test_a_report_of_an_unfinished_benchmark_takes_the_seeds_that_are_complete(finished, grid):
    benchmark, results = finished
    longer = replace(grid, seeds=(0, 1, 2))
    partial = plan_benchmark(longer, benchmark.bench.out, device="cpu").results()
    assert partial.seeds == (0, 1)
    assert partial.found.keys() == results.found.keys()
    assert partial.behind == {2: len(benchmark.jobs) // 2}
    assert f"Seed 2 is left out: it lacks {len(benchmark.jobs) // 2} jobs." in render_markdown(
        partial
    )


def test_a_report_of_a_first_seed_shows_the_cells_that_are_finished(finished, grid, tmp_path):
    benchmark, _ = finished
    for name in ("models", "cells/extended-data"):
        shutil.copytree(benchmark.bench.out / name, tmp_path / name)
    shutil.rmtree(tmp_path / "models/free-all-seed1")  # as if it were still to come
    partial = read_results(grid, benchmark.jobs, tmp_path)
    assert (partial.seeds, partial.scenarios) == ((0,), ["extended-data"])
    text = render_markdown(partial)
    assert "over 1 seed:" in text
    assert "Upgrade chain" not in text
    shutil.rmtree(tmp_path / "cells")
    with pytest.raises(UserError, match="no finished result of this benchmark yet"):
        read_results(grid, benchmark.jobs, tmp_path)


def test_results_need_at_least_one_finished_job(grid, tmp_path):
    bench = Bench(grid, tmp_path)
    with pytest.raises(UserError, match="holds no finished result"):
        read_results(grid, make_jobs(grid, bench.images[0]), tmp_path)
