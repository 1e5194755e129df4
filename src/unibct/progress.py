"""Progress of long jobs: a bar with rate and time left in a terminal, plain lines in a pipe."""

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

Advance: TypeAlias = Callable[[int], None]


class Progress(Protocol):
    """What a long job reports to."""

    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> AbstractContextManager[Advance]:
        """Begin a piece of ``total`` units; call what it gives with the units just done.

        Args:
            label: what is being done.
            total: units in all.
            unit: what is counted.
            done: units that an earlier run had done.
            weight: how much one unit counts in an overall bar.
        """
        ...

    def note(self, text: str) -> None:
        """A line worth keeping."""
        ...


class Silent:
    """No output: the default of the Python API."""

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Count nothing."""
        yield lambda count: None

    def note(self, text: str) -> None:
        """Keep nothing."""


class Lines:
    """Plain lines: one at the end of each task, and every ``every`` seconds.

    Args:
        every: seconds between two lines of a task.
        log: a file that they are added to, with the time, instead of standard error.
    """

    def __init__(self, every: float = 15.0, log: Path | None = None) -> None:
        self.every = every
        self.log = log

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Report in lines."""
        begin = last = time.monotonic()
        count = done

        def advance(units: int) -> None:
            nonlocal count, last
            count += units
            now = time.monotonic()
            if now - last >= self.every:
                last = now
                rate = (count - done) / max(now - begin, 1e-9)
                left = clock((total - count) / max(rate, 1e-9))
                self.note(f"{label}: {count:,}/{total:,} {unit}, {rate:,.0f} {unit}/s, {left} left")

        yield advance
        if count == done:  # nothing was left to do
            return
        seconds = max(time.monotonic() - begin, 1e-9)
        rate = (count - done) / seconds
        self.note(f"{label}: {count:,} {unit} in {clock(seconds)}, {rate:,.0f} {unit}/s")

    def note(self, text: str) -> None:
        """Print a line."""
        if self.log is None:
            print(text, file=sys.stderr, flush=True)
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


class Both:
    """Reports to two at once."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._all = (first, second)

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Count in both."""
        with ExitStack() as stack:
            advances = [
                stack.enter_context(one.task(label, total, unit, done=done, weight=weight))
                for one in self._all
            ]

            def advance(units: int) -> None:
                for each in advances:
                    each(units)

            yield advance

    def note(self, text: str) -> None:
        """Say it to both."""
        for one in self._all:
            one.note(text)


class Bars:
    """Live bars in a terminal; with ``overall``, one more for the whole job."""

    def __init__(self, overall: float | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f} %"),
            _rate_column(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self._overall = (
            None if overall is None else self._bars.add_task("[bold]all", total=overall, unit="")
        )

    def __enter__(self) -> "Bars":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Show one more bar."""
        bar = self._bars.add_task(label, total=total, unit=unit)

        def advance(units: int) -> None:
            self._bars.advance(bar, units)
            if self._overall is not None:
                self._bars.advance(self._overall, units * weight)

        self._bars.update(bar, completed=done)  # a task that is done already shows as finished
        if self._overall is not None and done:
            self._bars.advance(self._overall, done * weight)
        yield advance

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)


@contextmanager
def terminal_progress(
    overall: float | None = None, logs: Path | None = None
) -> Generator[Progress]:
    """Bars if standard error is a terminal, else lines.

    Args:
        overall: the work of the whole job, for one more bar.
        logs: a folder; where ``torchrun`` started several processes, each adds lines to a file of
            its own in it, and the first alone reports to the terminal.
    """
    with ExitStack() as stack:
        shown: Progress = Silent()
        if is_first_process():
            shown = stack.enter_context(Bars(overall)) if sys.stderr.isatty() else Lines()
        if logs is not None and os.environ.get("WORLD_SIZE", "1") != "1":
            rank = int(os.environ.get("RANK", "0"))
            shown = Both(shown, Lines(log=logs / f"rank-{rank:05}.log"))
        yield shown


def is_first_process() -> bool:
    """Whether this process speaks for all that ``torchrun`` started."""
    return os.environ.get("RANK", "0") == "0"


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rate_column() -> "ProgressColumn":
    from rich.progress import ProgressColumn
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: "Task") -> "Text":
            speed = task.finished_speed or task.speed
            unit = task.fields.get("unit")
            return Text(f"{speed:,.0f} {unit}/s" if speed and unit else "")

    return RateColumn()
