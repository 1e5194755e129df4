"""A benchmark from its grid to its results; started again, it goes on where it was."""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unibct.benchmark.forecast import forecast
from unibct.benchmark.jobs import Job, make_jobs, select_jobs
from unibct.benchmark.plan import Grid
from unibct.benchmark.results import Results, read_results
from unibct.benchmark.workers import Board, last_line, run_jobs
from unibct.benchmark.workspace import (
    JOB_FOLDERS,
    SETTINGS_FILE,
    Workspace,
    benchmark_settings,
    is_finished,
    require_same_benchmark,
)
from unibct.distributed.cpus import usable_cpus
from unibct.distributed.device import pick_device
from unibct.errors import UserError
from unibct.files import sweep, write_json, write_text
from unibct.progress import Progress

ERROR_FILE = "error.txt"


class JobsFailedError(UserError):
    """Some jobs of a benchmark failed; the others are finished and kept."""


@dataclass(frozen=True)
class Benchmark:
    """A settled benchmark: its jobs, its folder, and with how many processes it runs.

    Attributes:
        workspace: grid, images and folder.
        settings: what all results of its folder have in common.
        jobs: all jobs of the grid.
        chosen: those that are to be run now.
        workers: processes at work at the same time.
        threads: of each.
    """

    workspace: Workspace
    settings: dict[str, Any]
    jobs: list[Job]
    chosen: list[Job]
    workers: int
    threads: int

    @property
    def left(self) -> list[Job]:
        """The chosen jobs that are not finished."""
        return [job for job in self.chosen if not is_finished(self.workspace.out, job)]

    def seconds_left(self) -> float:
        """How long they should take."""
        train, test = self.workspace.images
        return forecast(
            self.chosen,
            self.workspace.out,
            workers=self.workers,
            threads=self.threads,
            classes=len(train.class_names),
            test_images=len(test),
            scores=len(self.workspace.split.query) * len(test.class_names),
            device=pick_device(self.workspace.device),
        )

    def results(self) -> Results:
        """What is finished of the whole grid."""
        return read_results(self.workspace.grid, self.jobs, self.workspace.out)


def plan_benchmark(
    grid: Grid,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    workers: int | None = None,
    device: str = "auto",
    read_images: bool = True,
    progress: Progress | None = None,
) -> Benchmark:
    """Settle what will run; what cannot work is refused now rather than hours later.

    Args:
        grid: what is compared.
        out: the benchmark's folder.
        only: run only these cells (and what they need); see ``select_jobs``.
        workers: processes at work at the same time; by default one for each core, or a single
            one on a GPU.
        device: ``auto``, ``cpu``, ``cuda``, …
        read_images: read every image once, to find unreadable and changed ones; a report needs
            them no more.
        progress: told of each image.
    """
    on_cpu = pick_device(device).type == "cpu"
    cores = usable_cpus()
    if workers is None:
        workers = cores if on_cpu else 1
    if workers < 1:
        raise UserError(f"at least one worker is needed, not {workers}")
    if grid.skip_bad:
        grid.open(progress)  # says what is left out
    workspace = Workspace(grid, Path(out), device)
    settings = benchmark_settings(workspace)
    require_same_benchmark(workspace, settings)
    jobs = make_jobs(grid, workspace.images[0])
    chosen = select_jobs(jobs, only)
    _ = workspace.split, workspace.far  # test images that cannot be searched
    if read_images:
        settings |= workspace.read_all(progress)
        require_same_benchmark(workspace, settings)
    return Benchmark(workspace, settings, jobs, chosen, workers, _threads(cores // workers))


def run_benchmark(
    benchmark: Benchmark, changed: Callable[[Board, Job | None], None] = lambda board, job: None
) -> Results:
    """Run what is left, and read all results.

    Args:
        benchmark: what ``plan_benchmark`` settled.
        changed: told of every change; see ``run_jobs``.

    Raises:
        JobsFailedError: some jobs failed; ``benchmark.results()`` has the others.
    """
    workspace = benchmark.workspace

    def noted(board: Board, job: Job | None) -> None:
        if job is not None:
            _note_error(workspace.out / job.folder / ERROR_FILE, board.errors.get(job.folder))
        changed(board, job)

    with _locked(workspace.out):
        for folder in JOB_FOLDERS:
            sweep(workspace.out / folder)
        if not (workspace.out / SETTINGS_FILE).is_file():
            pixels = {} if "pixels" in benchmark.settings else workspace.read_all()
            write_json(workspace.out / SETTINGS_FILE, benchmark.settings | pixels)
        board = run_jobs(
            workspace,
            benchmark.chosen,
            workers=benchmark.workers,
            threads=benchmark.threads,
            changed=noted,
        )
    if board.errors:
        folder, message = next(iter(board.errors.items()))
        lost = sum(state == "left out" for state in board.states.values())
        raise JobsFailedError(
            f"{len(board.errors)} of {len(board.jobs)} jobs failed and {lost} more were left out; "
            f"the rest is kept, and the same command tries them again; first {folder}: "
            f"{last_line(message)} "
            f"(all of it: {workspace.out / folder / ERROR_FILE})"
        )
    return benchmark.results()


@contextmanager
def _locked(out: Path) -> Generator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
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


def _note_error(path: Path, message: str | None) -> None:
    """Keep what went wrong with a job beside it, until it is tried again."""
    if message is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, message.strip() + "\n")


def _threads(share: int) -> int:
    """A worker's share of the cores, or fewer where the user wants fewer."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    most = int(wanted) if wanted.isdecimal() else share
    return max(min(share, most), 1)
