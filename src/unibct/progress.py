"""Progress of long jobs: bars in a terminal, otherwise plain lines.

As with ``logging``, a job does not hand its progress on: it says ``progress.task(…)`` and
``progress.note(…)``, and whoever wants to see it calls it inside ``with progress.shown(Lines()):``.
Without that nothing is shown. A new thread begins with nothing shown.

The lines go through the logger ``unibct.progress`` of Python's ``logging``. An application sees
them in its own handlers if it shows ``Lines(stderr=False)`` and sets the logger's
level to INFO. unibct itself adds no handler to any logger.
"""

import logging
import os
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

LOGGER = logging.getLogger("unibct.progress")


class Advance(Protocol):
    """Reports the units of a task that were just done."""

    def __call__(self, count: int, status: str | None = None) -> None:
        """Count units; a ``status`` stands beside the bar, or in the lines, until the next one."""
        ...


def ignore(count: int, status: str | None = None) -> None:
    """Report nothing."""


class Progress(Protocol):
    """Where a long job reports its progress."""

    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> AbstractContextManager[Advance]:
        """Begin a task. The context manager yields a function to call with the units just done.

        Args:
            label: what is being done.
            total: number of units in the task.
            unit: what is counted.
            done: units that an earlier run has done.
            weight: how much one unit counts in an overall bar.
        """
        ...

    def note(self, text: str) -> None:
        """Report a message."""
        ...


class Silent:
    """No output: the default."""

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Yield a function that does nothing."""
        yield ignore

    def note(self, text: str) -> None:
        """Do nothing."""


_RECEIVER: ContextVar[Progress] = ContextVar("progress", default=Silent())  # noqa: B039


def task(
    label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
) -> AbstractContextManager[Advance]:
    """Begin a task of whoever is shown the progress, see ``Progress.task``."""
    return _RECEIVER.get().task(label, total, unit, done=done, weight=weight)


def note(text: str) -> None:
    """Report a message to whoever is shown the progress."""
    _RECEIVER.get().note(text)


@contextmanager
def shown(receiver: Progress) -> Generator[Progress]:
    """Report what runs inside the block to ``receiver``."""
    token = _RECEIVER.set(receiver)
    try:
        yield receiver
    finally:
        _RECEIVER.reset(token)


def silenced() -> AbstractContextManager[Progress]:
    """Show nothing of what runs inside the block: small pieces of a task that is shown as one."""
    return shown(Silent())


class Lines:
    """Plain lines: one at the end of each task, and one every ``every`` seconds.

    Each line is a ``logging`` record. It goes to standard error or to a file, and also to the
    logger ``unibct.progress``, where an application may have its own handlers.

    Args:
        every: seconds between two lines of a task.
        log: a file to which the lines are appended, with the time.
        stderr: whether the lines are printed to standard error; by default if there is no log.
        log_after: a folder; the log is not written before it is there. So a job that is refused
            before it makes its folder leaves no log.
    """

    def __init__(
        self,
        every: float = 15.0,
        log: Path | None = None,
        *,
        stderr: bool | None = None,
        log_after: Path | None = None,
    ) -> None:
        self.every = every
        self.log = log
        # These handlers belong to this object and not to the logger. So two objects never print
        # each other's lines, and there is nothing to remove from the logger.
        self._handlers: list[logging.Handler] = []
        if stderr or (stderr is None and log is None):
            self._handlers.append(_StderrHandler())
        if log is not None:
            self._handlers.append(_LogFileHandler(log, log_after))

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Report a task in lines."""
        begin = last = time.monotonic()
        done_now, shown = done, ""

        def advance(count: int, status: str | None = None) -> None:
            nonlocal done_now, last, shown
            done_now += count
            shown = shown if status is None else f", {status}"
            now = time.monotonic()
            if now - last >= self.every:
                last = now
                rate = (done_now - done) / max(now - begin, 1e-9)
                left = clock((total - done_now) / max(rate, 1e-9))
                place = f"{done_now:,}/{total:,} {unit}"
                self.note(f"{label}: {place}, {rate:,.0f} {unit}/s, {left} left{shown}")

        yield advance
        if done_now == done:  # there was nothing left to do
            return
        seconds = max(time.monotonic() - begin, 1e-9)
        rate = (done_now - done) / seconds
        took = f"{done_now:,} {unit} in {clock(seconds)}"
        self.note(f"{label}: {took}, {rate:,.0f} {unit}/s{shown}")

    def note(self, text: str) -> None:
        """Write a line."""
        record = LOGGER.makeRecord(LOGGER.name, logging.INFO, __file__, 0, text, (), None, "note")
        for handler in self._handlers:
            handler.handle(record)
        if LOGGER.isEnabledFor(logging.INFO):
            LOGGER.handle(record)


class _StderrHandler(logging.Handler):
    """Prints the message to what ``sys.stderr`` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


class _LogFileHandler(logging.Handler):
    """Appends the time and the message to a file.

    The file is opened for each line, so it needs no closing, and its folder is made with the
    first line. Lines that come before the folder ``after`` is there are kept back.
    """

    def __init__(self, path: Path, after: Path | None = None) -> None:
        super().__init__()
        self._path, self._after = path, after
        self._kept_back: list[str] = []
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self._kept_back.append(f"{self.format(record)}\n")
        if self._after is not None and not self._after.is_dir():
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(self._kept_back)
        self._kept_back.clear()


class Both:
    """Reports everything to two others."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._receivers = (first, second)

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Begin the task in both."""
        with ExitStack() as stack:
            advances = [
                stack.enter_context(receiver.task(label, total, unit, done=done, weight=weight))
                for receiver in self._receivers
            ]

            def advance(count: int, status: str | None = None) -> None:
                for advance_one in advances:
                    advance_one(count, status)

            yield advance

    def note(self, text: str) -> None:
        """Pass a message to both."""
        for receiver in self._receivers:
            receiver.note(text)


class Bars:
    """Live bars in a terminal; with ``overall``, one more bar for the whole job."""

    def __init__(self, overall: float | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        whole = partial(Column, no_wrap=True)  # in a narrow terminal, only the bar is shorter
        self._bars = RichProgress(
            SpinnerColumn(finished_text="[green]✓", table_column=whole()),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f} %"),
            _rate_column(),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=whole()),
            TextColumn("{task.fields[status]}", markup=False),
            console=Console(stderr=True),
        )
        self._overall_bar = (
            None
            if overall is None
            else self._bars.add_task("[bold]all", total=overall, unit="", status="")
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
        """Show a bar for the task."""
        bar = self._bars.add_task(label, total=total, unit=unit, status="")

        def advance(count: int, status: str | None = None) -> None:
            self._bars.advance(bar, count)
            if status is not None:
                self._bars.update(bar, status=status)
            if self._overall_bar is not None:
                self._bars.advance(self._overall_bar, count * weight)

        self._bars.update(bar, completed=done)  # shows a task that is already done as finished
        if self._overall_bar is not None and done:
            self._bars.advance(self._overall_bar, done * weight)
        yield advance

    def note(self, text: str) -> None:
        """Print a message above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)


@contextmanager
def terminal_progress(
    overall: float | None = None, logs: Path | None = None
) -> Generator[Progress]:
    """Show bars if standard error is a terminal, otherwise lines.

    If ``torchrun`` started several processes, only the first one reports to the terminal.

    Args:
        overall: the work of the whole job, for one more bar.
        logs: a folder for log files. If ``torchrun`` started several processes, each appends its
            lines to its own file there, once the folder around ``logs`` is there.
    """
    log, run = None, None if logs is None else logs.parent
    if logs is not None and os.environ.get("WORLD_SIZE", "1") != "1":
        rank = int(os.environ.get("RANK", "0"))
        log = logs / f"rank-{rank:05}.log"
    with ExitStack() as stack:
        if not is_first_process():
            receiver = Silent() if log is None else Lines(log=log, log_after=run)
        elif not sys.stderr.isatty():
            receiver = Lines(log=log, stderr=True, log_after=run)
        else:
            bars = stack.enter_context(Bars(overall))
            receiver = bars if log is None else Both(bars, Lines(log=log, log_after=run))
        yield stack.enter_context(shown(receiver))


def is_first_process() -> bool:
    """Return whether this is the first process that ``torchrun`` started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def clock(seconds: float) -> str:
    """Return a duration as ``minutes:seconds``, or ``hours:minutes:seconds`` from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rate_column() -> "ProgressColumn":
    """Return a column with the rate, such as ``1,200 images/s``."""
    from rich.progress import ProgressColumn
    from rich.table import Column
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: "Task") -> "Text":
            speed = task.finished_speed or task.speed
            unit = task.fields.get("unit")
            return Text(f"{speed:,.0f} {unit}/s" if speed and unit else "")

    return RateColumn(table_column=Column(no_wrap=True))
