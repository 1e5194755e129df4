"""Plan a benchmark from its grid, run it, and read its results.

A benchmark that was stopped continues when it is run again: finished jobs are not repeated.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from unibct import progress
from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import Job, cell_folder, make_jobs, select_jobs, share_warmups
from unibct.benchmark.results import Results, read_results
from unibct.benchmark.workers import Board, OnChange, last_line, run_jobs
from unibct.benchmark.workspace import (
    JOB_FOLDERS,
    SETTINGS_FILE,
    Workspace,
    is_finished,
    read_result,
)
from unibct.data.image_set import require_outside
from unibct.distributed.cpus import usable_cpus
from unibct.distributed.device import pick_device
from unibct.errors import UserError
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.evaluation.templates import require_searchable
from unibct.files import sweep, write_json, write_text
from unibct.training.network import first_classes, slow_precision_note

ERROR_FILE = "error.txt"


class JobsFailedError(UserError):
    """Raised if some jobs of a benchmark failed. The results of the others are kept."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that is ready to run."""

    workspace: Workspace
    settings: dict[str, Any]  # those that all results of its folder share
    jobs: list[Job]  # all jobs of the grid
    chosen_jobs: list[Job]  # the jobs to run now
    workers: int  # number of processes that run at the same time
    threads: int  # of each process

    @property
    def unfinished_jobs(self) -> list[Job]:
        """The chosen jobs that are not finished."""
        return [job for job in self.chosen_jobs if not is_finished(self.workspace.out, job)]

    def seconds_left(self) -> float | None:
        """How long the unfinished jobs will take at the finished ones' rate; None if none is."""
        out = self.workspace.out
        rates = [
            read_result(out, job.folder)["cost"]["images_per_second"]
            for job in self.jobs
            if job.training is not None and is_finished(out, job)
        ]
        if not rates:
            return None
        work = sum(job.work for job in self.unfinished_jobs)
        return work / float(np.median(rates)) / self.workers

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
        read_images: read every image once, to find unreadable and changed ones. A report alone
            does not need this.
    """
    cores = usable_cpus()
    if workers is None:
        workers = cores if pick_device(device).type == "cpu" else 1
    if workers < 1:
        raise UserError(f"at least one worker is needed, not {workers}")
    workspace = Workspace(grid, Path(out), device)
    _require_usable_images(workspace)
    settings = workspace.settings()
    _note_doubts(workspace)
    workspace.require_same_benchmark(settings)
    jobs = make_jobs(grid, workspace.all_training_images)
    _require_results(grid, jobs)
    if read_images:
        _require_unlearnt(workspace)
        settings |= workspace.pixel_digests()
        workspace.require_same_benchmark(settings)
    chosen_jobs = select_jobs(jobs, only)
    trained = {
        job.folder
        for job in jobs
        if job.training is not None and (job in chosen_jobs or is_finished(workspace.out, job))
    }
    # No two of them make the same warm-up at the same time.
    chosen_jobs = share_warmups(chosen_jobs, trained)
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
            path = workspace.out / job.folder / ERROR_FILE
            if job.folder in board.errors:
                write_text(path, board.errors[job.folder].strip() + "\n")
            else:
                path.unlink(missing_ok=True)  # that of an earlier try
        on_change(board, job)

    with _locked(workspace.out):
        for folder in JOB_FOLDERS:
            sweep(workspace.out / folder)
        if not (workspace.out / SETTINGS_FILE).is_file():
            digests = {} if "pixels" in benchmark.settings else workspace.pixel_digests()
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
    try:
        with FileLock(out / ".lock", blocking=False):
            yield
    except Timeout as error:
        raise UserError(
            f"another process is running a benchmark in {out}; wait for it, or choose another "
            "folder (out)"
        ) from error


def _threads_per_worker(cores: int) -> int:
    """Return the threads of a worker that has this many cores, or fewer if the user set fewer."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    limit = int(variable) if variable.isdecimal() else cores
    return max(min(cores, limit), 1)
