"""A benchmark while it runs: a live table in a terminal, a line for each finished job in a pipe."""

import math
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unibct.benchmark.jobs import Job, cell_folder, old_folder
from unibct.benchmark.plan import Grid
from unibct.benchmark.run import Benchmark
from unibct.benchmark.workers import Board, last_line
from unibct.benchmark.workspace import RESULT_FILE
from unibct.errors import UserError
from unibct.evaluation.directions import CROSS, OLD_SELF
from unibct.evaluation.metrics.table import TOP_1
from unibct.files import read_json
from unibct.progress import clock


class Watcher(Protocol):
    """What is told of every change."""

    def __call__(self, board: Board, job: Job | None) -> None:
        """A job began or ended, or half a second has passed."""
        ...


class Gains:
    """Cross − old self test of finished cells, in points of top-1, read once."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._top1: dict[tuple[str, str], float] = {}

    def of(self, scenario: str, method: str, seed: int) -> float:
        """The gain of one cell; not a number while the old model is being trained again."""
        return self._read(cell_folder(scenario, method, seed), CROSS) - self._read(
            old_folder(scenario, seed), OLD_SELF
        )

    def _read(self, folder: str, test: str) -> float:
        key = (folder, test)
        if key not in self._top1:
            try:
                result = read_json(self._out / folder / RESULT_FILE)
            except UserError:
                return math.nan
            self._top1[key] = 100 * result["tests"][test]["metrics"][TOP_1]
        return self._top1[key]


@contextmanager
def watched(benchmark: Benchmark) -> Generator[Watcher]:
    """Show a benchmark's progress on standard error."""
    if not sys.stderr.isatty():
        yield _lines(benchmark)
        return
    gains = Gains(benchmark.workspace.out)
    begin = time.monotonic()
    clocked = _Clock(begin)
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:

        def changed(board: Board, job: Job | None) -> None:
            live.update(
                Group(_table(benchmark.workspace.grid, board, gains), _footer(board, clocked))
            )

        yield changed


def _lines(benchmark: Benchmark) -> Watcher:
    gains = Gains(benchmark.workspace.out)
    clocked = _Clock(time.monotonic())

    def changed(board: Board, job: Job | None) -> None:
        left = clocked.left(board)
        if job is None or board.states[job.folder] == "running":
            return
        finished = sum(state == "finished" for state in board.states.values())
        line = f"{finished}/{len(board.jobs)} {job.folder}: {board.states[job.folder]}"
        kind, *names = job.folder.split("/")
        if kind == "cells" and board.states[job.folder] == "finished":
            line += f", cross − old self top-1 {gains.of(names[0], names[1], job.seed):+.1f}"
        if job.folder in board.errors:
            line += f": {last_line(board.errors[job.folder])}"
        print(f"{line}{left}", file=sys.stderr, flush=True)

    return changed


class _Clock:
    """Time left, from the images that went through training since the start."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._first: int | None = None

    def left(self, board: Board) -> str:
        work = board.work_left
        if self._first is None:
            self._first = work
        seconds = time.monotonic() - self._begin
        done = self._first - work
        if done <= 0 or seconds < 20 or work == 0:
            return ""
        return f", {clock(seconds * work / done)} left"


def _table(grid: Grid, board: Board, gains: Gains) -> Table:
    table = Table("cross − old self, top-1", box=None, padding=(0, 2, 0, 0))
    for scenario in grid.scenarios:
        table.add_column(scenario.replace("-", "-\n"), justify="right")  # for narrow terminals
    for method in grid.methods:
        cells = [_cell(grid, board, gains, scenario, method) for scenario in grid.scenarios]
        table.add_row(method, *cells)
    return table


def _cell(grid: Grid, board: Board, gains: Gains, scenario: str, method: str) -> Text:
    """The mean gain over finished seeds, and what is under way."""
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
            share = board.done.get(job.folder, 0) / max(job.work, 1)
            text.append(f" ▶{min(share, 1):.0%}", style="cyan")
        elif state in ("failed", "left out"):
            text.append(f" {state}", style="bold red")
    return text if text.plain else Text("·", style="dim")


def _footer(board: Board, clocked: _Clock) -> Text:
    finished = sum(state == "finished" for state in board.states.values())
    running = [folder for folder, state in board.states.items() if state == "running"]
    parts = [
        f"{folder} {board.rates[folder]:,.0f} images/s" if folder in board.rates else folder
        for folder in running
    ]
    line = f"\n{finished} of {len(board.jobs)} jobs{clocked.left(board)}"
    return Text("\n".join([line, *parts]), style="dim")
