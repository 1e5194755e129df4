"""How long a benchmark will take, estimated from its finished jobs or from a short trial."""

import heapq
import os
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from unibct import progress
from unibct.benchmark.cells import model_elsewhere
from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import Job, cell_folder, make_jobs, select_jobs, share_warmups
from unibct.benchmark.results import Results, read_results
from unibct.benchmark.workers import Board, OnChange, last_line, run_jobs
from unibct.benchmark.workspace import (
    JOB_FOLDERS,
    RESULT_FILE,
    SETTINGS_FILE,
    Workspace,
    benchmark_settings,
    is_finished,
    record_validation,
    require_same_benchmark,
    require_same_training,
)
from unibct.data.image_set import require_outside
from unibct.distributed.cpus import usable_cpus
from unibct.distributed.device import pick_device
from unibct.errors import UserError
from unibct.evaluation.search_test import CROSS
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.evaluation.templates import require_searchable
from unibct.files import read_json, sweep, write_json, write_text
from unibct.losses import arcface
from unibct.models.architectures import build_network
from unibct.models.input import to_input
from unibct.training.network import (
    autocast,
    first_classes,
    recipe_architecture,
    recipe_input,
    slow_precision_note,
)
from unibct.training.optimizer import SGD
from unibct.training.recipe import Recipe
from unibct.training.state import initial_class_weights

_TRIAL_STEPS = 12
_SLOW_STEPS = 4  # the first steps are slower and are not counted
_FORWARD_SHARE = 1 / 3  # time to embed an image, as a share of a training step's time
_SECONDS_PER_SCORE = 1e-6  # of a test, with its bootstrap
_MORE_OF_A_CELL = 5  # tests that take as long as its thresholds, blends and mixed galleries


@dataclass(frozen=True)
class RunConditions:
    """What the time of a job depends on, besides the job itself.

    Attributes:
        workers: number of processes that run at the same time.
        threads: number of threads of each process.
        device: where models are trained.
        classes: approximate number of classes that a model is trained on.
        test_images: number of images that each model embeds for the tests.
        scores: number of scores in a test, queries × templates.
    """

    workers: int
    threads: int
    device: torch.device
    classes: int
    test_images: int
    scores: int


def forecast_seconds(
    jobs: Sequence[Job], out: Path, conditions: RunConditions, *, again: Sequence[Job] = ()
) -> float:
    """Return how many seconds the jobs that have work will take, roughly.

    Args:
        jobs: the jobs of the benchmark, finished ones too.
        out: the benchmark's folder.
        conditions: the machine and the size of the data.
        again: finished jobs that are only measured again.
    """
    unfinished = [job for job in jobs if not is_finished(out, job)]
    recipes = {
        job.training.recipe.architecture: job.training.recipe for job in unfinished if job.training
    }
    rates = finished_rates(out, jobs)
    for architecture, recipe in recipes.items():
        if architecture not in rates:
            rates[architecture] = trial_rate(
                recipe, conditions.classes, conditions.threads, conditions.device
            )
    seconds = {job.folder: _measuring_seconds(job, conditions) for job in (*unfinished, *again)}
    for job in unfinished:
        images = job.work + _FORWARD_SHARE * conditions.test_images
        if job.training is not None:
            seconds[job.folder] += images / rates[job.training.recipe.architecture]
        elif job.map_fitting is not None:
            seconds[job.folder] += images / max(rates.values(), default=np.inf)
    to_run = [job for job in jobs if job.folder in seconds]
    return schedule(to_run, seconds, conditions.workers)


def _measuring_seconds(job: Job, conditions: RunConditions) -> float:
    """Return how long the tests of a job take, and what a cell measures besides."""
    is_cell = any(test.name == CROSS for test in job.tests)
    tests = len(job.tests) + (_MORE_OF_A_CELL if is_cell else 0)
    return _SECONDS_PER_SCORE * conditions.scores * tests


def schedule(jobs: Sequence[Job], seconds: Mapping[str, float], workers: int) -> float:
    """Return when the last job ends if each free worker takes the first job that is ready.

    Args:
        jobs: each after those that it needs.
        seconds: how long each job takes, by its folder.
        workers: number of jobs that run at the same time.
    """
    waiting, running, now = list(jobs), list[tuple[float, str]](), 0.0
    unfinished = {job.folder for job in jobs}
    while waiting or running:
        ready = [job for job in waiting if unfinished.isdisjoint(job.needs + job.after)]
        for job in ready[: workers - len(running)]:
            waiting.remove(job)
            heapq.heappush(running, (now + seconds[job.folder], job.folder))
        now, folder = heapq.heappop(running)
        unfinished.remove(folder)
    return now


def finished_rates(out: Path, jobs: Iterable[Job]) -> dict[str, float]:
    """Return the training images per second of each architecture in the finished jobs."""
    rates: dict[str, list[float]] = {}
    for job in jobs:
        if job.training is not None and is_finished(out, job):
            result = read_json(out / job.folder / RESULT_FILE)
            rates.setdefault(result["architecture"], []).append(result["cost"]["images_per_second"])
    return {architecture: float(np.median(of_jobs)) for architecture, of_jobs in rates.items()}


def trial_rate(
    recipe: Recipe, classes: int, threads: int, device: torch.device, *, steps: int = _TRIAL_STEPS
) -> float:
    """Return the training images per second, measured in a few steps on random pixels."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        architecture = recipe_architecture(recipe)
        spec, dim = recipe_input(recipe, architecture), recipe.dim or architecture.dim
        network = build_network(architecture, spec, dim)
        network.to(device, memory_format=torch.channels_last)  # pyright: ignore
        rows = initial_class_weights(classes, dim, 0, range(classes))
        class_weights = torch.nn.Parameter(rows.to(device))
        optimizer = SGD([*network.parameters(), class_weights], lr=1e-3, momentum=0.9)
        rng = np.random.default_rng(0)
        shape = (recipe.batch_size, *spec.frame.shape)
        pixels = rng.integers(256, size=shape, dtype=np.uint8)
        labels = torch.from_numpy(rng.integers(classes, size=recipe.batch_size)).to(device)
        times: list[float] = []
        for _ in range(steps):
            begin = time.perf_counter()
            with autocast(recipe.precision, device):
                embeddings = network(to_input(pixels, spec, device))
            loss = arcface(embeddings.float(), class_weights, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device
            times.append(time.perf_counter() - begin)
        return recipe.batch_size / float(np.median(times[_SLOW_STEPS:]))
    finally:
        torch.set_num_threads(threads_before)


# Plan a benchmark from its grid, run it, and read its results.
#
# A benchmark that was stopped continues when it is run again: finished jobs are not repeated.

ERROR_FILE = "error.txt"


class JobsFailedError(UserError):
    """Raised if some jobs of a benchmark failed. The results of the others are kept."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that is ready to run.

    Attributes:
        workspace: grid, images and folder.
        settings: the settings that all results of its folder share.
        jobs: all jobs of the grid.
        chosen_jobs: the jobs to run now.
        workers: number of processes that run at the same time.
        threads: number of threads of each process.
    """

    workspace: Workspace
    settings: dict[str, Any]
    jobs: list[Job]
    chosen_jobs: list[Job]
    workers: int
    threads: int

    @property
    def unfinished_jobs(self) -> list[Job]:
        """The chosen jobs that are not finished, or that are to be measured again."""
        return [job for job in self.chosen_jobs if self.workspace.has_work(job)]

    def work_of(self, job: Job) -> int:
        """Return how many images go through a job's training; 0 if it takes a finished model."""
        is_trained = is_finished(self.workspace.out, job)
        return 0 if is_trained or model_elsewhere(self.workspace, job) is not None else job.work

    def seconds_left(self) -> float:
        """Return how long the unfinished jobs will take, roughly."""
        test_images, validation = self.workspace.test_images, self.workspace.validation_images
        conditions = RunConditions(
            workers=self.workers,
            threads=self.threads,
            device=pick_device(self.workspace.device),
            classes=len(self.workspace.all_training_images.class_names),
            test_images=len(test_images) + (0 if validation is None else len(validation)),
            scores=len(self.workspace.split.query) * len(test_images.class_names),
        )
        jobs = [
            job if model_elsewhere(self.workspace, job) is None else replace(job, work=0)
            for job in self.chosen_jobs
        ]
        again = [job for job in self.unfinished_jobs if is_finished(self.workspace.out, job)]
        return forecast_seconds(jobs, self.workspace.out, conditions, again=again)

    def results(self) -> Results:
        """Return the results of all finished jobs of the grid."""
        return read_results(self.workspace.grid, self.jobs, self.workspace.out)


def plan_benchmark(
    grid: Grid,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    workers: int | None = None,
    device: str = "auto",
    measure_again: bool = False,
    models_from: str | Path | None = None,
    read_images: bool = True,
) -> Benchmark:
    """Return a benchmark that is ready to run.

    Everything that can be checked is checked here, before hours of training.

    Args:
        grid: what is compared.
        out: the benchmark's folder.
        only: run only these cells and the jobs that they need; see ``select_jobs``.
        workers: number of processes that run at the same time; by default one per core, or one
            on a GPU.
        device: ``auto``, ``cpu``, ``cuda``, …
        measure_again: run the tests of finished jobs again, from their models and embeddings,
            without training: for what an earlier version did not measure, or other validation
            images.
        models_from: the folder of another benchmark with the same training images and recipe. Its
            models are taken instead of training them again: for other test images.
        read_images: read every image once, to find unreadable and changed ones. A report alone
            does not need this.
    """
    on_cpu = pick_device(device).type == "cpu"
    cores = usable_cpus()
    if workers is None:
        workers = cores if on_cpu else 1
    if workers < 1:
        raise UserError(f"at least one worker is needed, not {workers}")
    if grid.skip_bad:
        grid.open_validation(*grid.open())  # reports the images left out
    elsewhere = None if models_from is None else Path(models_from)
    workspace = Workspace(grid, Path(out), device, measure_again, elsewhere)
    _require_usable_images(workspace)
    settings = benchmark_settings(workspace)
    _note_doubts(workspace)
    require_same_benchmark(workspace, settings)
    require_same_training(workspace, settings)
    jobs = make_jobs(grid, workspace.all_training_images)
    _require_results(grid, jobs)
    chosen_jobs = _with_warmups(workspace, jobs, select_jobs(jobs, only))
    if measure_again:
        chosen_jobs = _without_training(workspace, chosen_jobs)
    if read_images:
        _require_unlearnt(workspace)
        settings |= workspace.pixel_digests()
        require_same_benchmark(workspace, settings)
        require_same_training(workspace, settings)
    threads = _threads_per_worker(cores // workers)
    return Benchmark(workspace, settings, jobs, chosen_jobs, workers, threads)


def _require_usable_images(workspace: Workspace) -> None:
    """Refuse images that contain the results' folder, and tests that cannot be searched."""
    require_outside(workspace.all_training_images, workspace.out)
    for images in (workspace.test_images, workspace.validation_images):
        if images is not None:
            require_outside(images, workspace.out)
            require_searchable(images.labels, images.name)


def _require_unlearnt(workspace: Workspace) -> None:
    """Refuse tests and choices on classes that the first weights are known to have learnt."""
    recipe = workspace.grid.recipe
    learnt = {"first": first_classes(recipe)}
    for images in (workspace.test_images, workspace.validation_images):
        if images is not None:
            count = count_seen_classes(images.class_names, images.class_source, learnt).count
            if count:
                raise UserError(
                    f"the first weights ({recipe.weights}) have learnt {count} of the "
                    f"{len(images.class_names)} classes of {images.name}: take weights, or images "
                    "of classes, that have nothing to do with each other"
                )


def _require_results(grid: Grid, jobs: Sequence[Job]) -> None:
    """Refuse a grid without a cell and a chain; note the cells that cannot be."""
    folders = {job.folder for job in jobs}
    missing = [
        f"{method} in {scenario}"
        for method in grid.methods
        for scenario in grid.scenarios
        if cell_folder(scenario, method, grid.seeds[0]) not in folders
    ]
    why = "the method works only where the old model knows every new class"
    if len(missing) == len(grid.methods) * len(grid.scenarios) and not grid.chain_methods:
        raise UserError(f"there is no {' and no '.join(missing)}, so nothing can be run: {why}")
    if missing:
        progress.note(f"there is no {' and no '.join(missing)}: {why}")


def _with_warmups(workspace: Workspace, jobs: Sequence[Job], chosen: Sequence[Job]) -> list[Job]:
    """Return the chosen jobs so that no two of them make the same warm-up at the same time."""
    to_run = {job.folder for job in chosen}
    trained = {
        job.folder
        for job in jobs
        if job.training is not None
        and (job.folder in to_run or is_finished(workspace.out, job))
        and model_elsewhere(workspace, job) is None
    }
    return share_warmups(chosen, trained)


def _without_training(workspace: Workspace, chosen: Sequence[Job]) -> list[Job]:
    """Return the chosen jobs that can be measured without training or fitting anything."""
    measurable: dict[str, Job] = {}
    for job in chosen:  # each comes after those that it needs
        makes_model = job.training is not None or job.map_fitting is not None
        is_made = not makes_model or model_elsewhere(workspace, job) is not None
        if is_finished(workspace.out, job) or (is_made and measurable.keys() >= set(job.needs)):
            measurable[job.folder] = job
    if not measurable:
        raise UserError(f"{workspace.out} has no finished job that could be measured again")
    left_out = len(chosen) - len(measurable)
    if left_out:
        progress.note(
            f"{left_out} of {len(chosen)} jobs are not finished and are left out; the same command "
            "without --measure-again trains them"
        )
    return list(measurable.values())


def _note_doubts(workspace: Workspace) -> None:
    """Say what is allowed but may surprise."""
    slow = slow_precision_note(workspace.grid.recipe.precision, pick_device(workspace.device))
    if slow is not None:
        progress.note(slow)
    sets = (workspace.all_training_images, workspace.test_images)
    if len({images.class_source for images in sets}) > 1:
        progress.note(
            "a set only numbers its classes, without names: that no test class is a training "
            "class cannot be checked"
        )


def run_benchmark(benchmark: Benchmark, on_change: OnChange = lambda board, job: None) -> Results:
    """Run the unfinished jobs, and return the results of all finished jobs.

    Args:
        benchmark: made by ``plan_benchmark``.
        on_change: called when a job begins or ends; see ``run_jobs``.

    Raises:
        JobsFailedError: some jobs failed; ``benchmark.results()`` has the others.
    """
    workspace = benchmark.workspace

    def write_errors(board: Board, job: Job | None) -> None:
        if job is not None:
            _write_error(workspace.out / job.folder / ERROR_FILE, board.errors.get(job.folder))
        on_change(board, job)

    with _locked(workspace.out):
        for folder in JOB_FOLDERS:
            sweep(workspace.out / folder)
        if workspace.measure_again or not (workspace.out / SETTINGS_FILE).is_file():
            digests = {} if "pixels" in benchmark.settings else workspace.pixel_digests()
            record_validation(workspace.out)
            write_json(workspace.out / SETTINGS_FILE, benchmark.settings | digests)
        board = run_jobs(
            workspace,
            benchmark.chosen_jobs,
            workers=benchmark.workers,
            threads=benchmark.threads,
            on_change=write_errors,
        )
    if board.errors:
        folder, message = next(iter(board.errors.items()))
        left_out = sum(state == "left out" for state in board.states.values())
        raise JobsFailedError(
            f"{len(board.errors)} of {len(board.jobs)} jobs failed and {left_out} more were left "
            "out because they need one of them; the results of the others are kept, and the same "
            f"command tries these again; the first error is in {folder}: {last_line(message)} "
            f"(full message: {workspace.out / folder / ERROR_FILE})"
        )
    return benchmark.results()


@contextmanager
def _locked(out: Path) -> Generator[None]:
    """Lock the folder for this process; the lock ends with the process, even if it is killed."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"another process is running a benchmark in {out}; wait for it, or choose another --out"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _write_error(path: Path, message: str | None) -> None:
    """Write the error of a job to its folder, or remove an earlier one if there is no error."""
    if message is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, message.strip() + "\n")


def _threads_per_worker(cores: int) -> int:
    """Return the threads of a worker that has this many cores, or fewer if the user set fewer."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    limit = int(variable) if variable.isdecimal() else cores
    return max(min(cores, limit), 1)
