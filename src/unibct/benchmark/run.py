"""A benchmark from its grid to its results; started again, it goes on where it was."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unibct.benchmark.forecast import forecast
from unibct.benchmark.grid import Grid, Job, make_jobs, select_jobs
from unibct.benchmark.pool import Board, run_jobs
from unibct.benchmark.results import Results, read_results
from unibct.benchmark.work import Bench, is_finished, require_same_benchmark
from unibct.errors import UserError
from unibct.train import pick_device


@dataclass(frozen=True)
class Benchmark:
    """A settled benchmark: its jobs, its folder, and with how many processes it runs.

    Attributes:
        bench: grid, images and folder.
        jobs: all jobs of the grid.
        chosen: those that are to be run now.
        workers: processes at work at the same time.
        threads: of each.
    """

    bench: Bench
    jobs: list[Job]
    chosen: list[Job]
    workers: int
    threads: int

    @property
    def left(self) -> list[Job]:
        """The chosen jobs that are not finished."""
        return [job for job in self.chosen if not is_finished(self.bench.out, job)]

    def seconds_left(self) -> float:
        """How long they should take."""
        train, test = self.bench.images
        return forecast(
            self.chosen,
            self.bench.out,
            workers=self.workers,
            threads=self.threads,
            classes=len(train.class_names),
            test_images=len(test),
            scores=len(self.bench.protocol.query) * len(test.class_names),
            device=pick_device(self.bench.device),
        )

    def results(self) -> Results:
        """What is finished of the whole grid."""
        return read_results(self.bench.grid, self.jobs, self.bench.out)


def plan_benchmark(
    grid: Grid,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    workers: int | None = None,
    device: str = "auto",
) -> Benchmark:
    """Settle what will run; bad names and a folder of another benchmark are refused.

    Args:
        grid: what is compared.
        out: the benchmark's folder.
        only: run only these cells (and what they need); see ``select_jobs``.
        workers: processes at work at the same time; by default one for each core, or a single
            one on a GPU.
        device: ``auto``, ``cpu``, ``cuda``, …
    """
    on_cpu = pick_device(device).type == "cpu"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    if workers is None:
        workers = cores if on_cpu else 1
    if workers < 1:
        raise UserError(f"at least one worker is needed, not {workers}")
    bench = Bench(grid, Path(out), device)
    require_same_benchmark(bench)
    jobs = make_jobs(grid, bench.images[0])
    chosen = select_jobs(jobs, only)
    return Benchmark(bench, jobs, chosen, workers, max(cores // workers, 1))


def run_benchmark(
    benchmark: Benchmark, changed: Callable[[Board, Job | None], None] = lambda board, job: None
) -> Results:
    """Run what is left, and read all results.

    Args:
        benchmark: what ``plan_benchmark`` settled.
        changed: told of every change; see ``run_jobs``.
    """
    bench = benchmark.bench
    require_same_benchmark(bench, note=True)
    board = run_jobs(
        bench,
        benchmark.chosen,
        workers=benchmark.workers,
        threads=benchmark.threads,
        changed=changed,
    )
    if board.errors:
        folder, message = next(iter(board.errors.items()))
        lost = sum(state == "left out" for state in board.states.values())
        raise UserError(
            f"{len(board.errors)} of {len(board.jobs)} jobs failed and {lost} more were left out; "
            f"the rest is kept, and the same command tries them again; first {folder}: {message}"
        )
    return benchmark.results()
