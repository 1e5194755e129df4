"""Show a benchmark while it runs: a live table in a terminal, a line per job in a pipe."""

import math
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import Job, cell_folder, old_folder
from unibct.benchmark.run import Benchmark
from unibct.benchmark.workers import Board, OnChange, last_line
from unibct.benchmark.workspace import read_result
from unibct.errors import UserError
from unibct.evaluation.metrics import TOP_1
from unibct.evaluation.search_test import CROSS, OLD_SELF
from unibct.progress import clock


class Gains:
    """Cross − old self of the finished cells of a folder, in points of top-1.

    Each result file is read once.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._top1: dict[tuple[str, str], float] = {}

    def of(self, scenario: str, method: str, seed: int) -> float:
        """Return the gain of one cell, or NaN while the old model is being trained again."""
        cross = self._read(cell_folder(scenario, method, seed), CROSS)
        return cross - self._read(old_folder(scenario, seed), OLD_SELF)

    def _read(self, folder: str, test: str) -> float:
        key = (folder, test)
        if key not in self._top1:
            try:
                result = read_result(self._out, folder)
            except UserError:
                return math.nan
            self._top1[key] = 100 * result["tests"][test]["metrics"][TOP_1]
        return self._top1[key]


@contextmanager
def live_progress(benchmark: Benchmark) -> Generator[OnChange]:
    """Yield a function for ``run_benchmark`` that shows its progress on standard error."""
    gains, time_left = Gains(benchmark.workspace.out), _TimeLeft()
    if not sys.stderr.isatty():
        yield _lines(gains, time_left)
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:

        def show(board: Board, job: Job | None) -> None:
            live.update(
                Group(_table(benchmark.workspace.grid, board, gains), _footer(board, time_left))
            )

        yield show


def _lines(gains: Gains, time_left: "_TimeLeft") -> OnChange:
    """Return a function that prints a line for each job that has ended."""

    def show(board: Board, job: Job | None) -> None:
        time_left_text = time_left.text(board)
        if job is None or board.states[job.folder] == "running":
            return
        finished = sum(state == "finished" for state in board.states.values())
        line = f"{finished}/{len(board.jobs)} {job.folder}: {board.states[job.folder]}"
        kind, *names = job.folder.split("/")
        if kind == "cells" and board.states[job.folder] == "finished":
            line += f", cross − old self top-1 {gains.of(names[0], names[1], job.seed):+.1f}"
        if job.folder in board.errors:
            line += f": {last_line(board.errors[job.folder])}"
        print(f"{line}{time_left_text}", file=sys.stderr, flush=True)

    return show


class _TimeLeft:
    """The time left, estimated from the images that went through training since the start."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._work_at_begin: int | None = None

    def text(self, board: Board) -> str:
        """Return the time left as the end of a line, or nothing as long as it is unknown."""
        work = board.work_left
        if self._work_at_begin is None:
            self._work_at_begin = work
        seconds = time.monotonic() - self._begin
        done = self._work_at_begin - work
        if done <= 0 or seconds < 20 or work == 0:
            return ""
        return f", {clock(seconds * work / done)} left"


def _table(grid: Grid, board: Board, gains: Gains) -> Table:
    """Return the gains so far: a row for each method, a column for each scenario."""
    table = Table("cross − old self, top-1", box=None, padding=(0, 2, 0, 0))
    for scenario in grid.scenarios:
        table.add_column(scenario.replace("-", "-\n"), justify="right")  # for narrow terminals
    for method in grid.methods:
        cells = [_cell(grid, board, gains, scenario, method) for scenario in grid.scenarios]
        table.add_row(method, *cells)
    return table


def _cell(grid: Grid, board: Board, gains: Gains, scenario: str, method: str) -> Text:
    """Return the mean gain over the finished seeds, and the state of the others."""
    folders = {seed: cell_folder(scenario, method, seed) for seed in grid.seeds}
    states = {seed: board.states.get(folder) for seed, folder in folders.items()}
    if set(states.values()) == {None}:
        return Text("—", style="dim")
    text = Text()
    finished = [seed for seed, state in states.items() if state == "finished"]
    if finished:
        gain = sum(gains.of(scenario, method, seed) for seed in finished) / len(finished)
        text.append(f"{gain:+.1f}", style="green" if gain > 0 else "red")
        if len(finished) < len(grid.seeds):
            text.append(f" ({len(finished)}/{len(grid.seeds)})", style="dim")
    for seed, state in states.items():
        if state == "running":
            job = next(job for job in board.jobs if job.folder == folders[seed])
            share = board.trained_images.get(job.folder, 0) / max(job.work, 1)
            text.append(f" ▶{min(share, 1):.0%}", style="cyan")
        elif state in ("failed", "left out"):
            text.append(f" {state}", style="bold red")
    return text if text.plain else Text("·", style="dim")


def _footer(board: Board, time_left: _TimeLeft) -> Text:
    """Return how many jobs are finished, the time left, and the running jobs."""
    finished = sum(state == "finished" for state in board.states.values())
    running = [folder for folder, state in board.states.items() if state == "running"]
    job_lines = [
        f"{folder} {board.rates[folder]:,.0f} images/s" if folder in board.rates else folder
        for folder in running
    ]
    line = f"\n{finished} of {len(board.jobs)} jobs{time_left.text(board)}"
    return Text("\n".join([line, *job_lines]), style="dim")
