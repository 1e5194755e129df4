"""Long work in the background: one piece at a time, with its progress, and it can be paused."""

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

from unibct.errors import UserError
from unibct.gallery.page.answers import JobAnswer
from unibct.progress import Advance

Action = Literal["backfill", "rollback"]
Outcome = tuple[Literal["done", "paused"], str]
LOGGER = logging.getLogger("unibct.gallery.page")


class BusyError(UserError):
    """The gallery is in a state in which this cannot be done now."""


class Job:
    """A piece of work in a thread, and the progress that it reports.

    Attributes:
        pause_wanted: set when somebody asks for a pause.
        pause_work: called in the job's thread, between two pieces of work, if a pause is wanted.
    """

    def __init__(self, action: Action, work: Callable[["Job"], Outcome]) -> None:
        """Describe the work.

        Args:
            action: what it is.
            work: does it, reports its progress to the job, and says how it ended.
        """
        self.pause_wanted = threading.Event()
        self.pause_work: Callable[[], None] = lambda: None
        self._answer = JobAnswer(action=action, state="running", done=0, total=None, message="")
        self._work = work
        self._thread = threading.Thread(target=self._run, name=f"unibct {action}")

    @property
    def answer(self) -> JobAnswer:
        """How far it is."""
        return self._answer

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self._answer.state == "running"

    def start(self) -> "Job":
        """Begin."""
        self._thread.start()
        return self

    def wait(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Take note of the progress of a task: a job is a ``Progress``."""

        def advance(count: int, status: str | None = None) -> None:
            self._change(done=self._answer.done + count)
            self._heed_pause()

        self._change(done=done, total=total)
        self._heed_pause()
        yield advance

    def note(self, text: str) -> None:
        """Take note of a message."""
        self._change(message=text)

    def _heed_pause(self) -> None:
        if self.pause_wanted.is_set():
            self.pause_work()

    def _change(self, **changes: object) -> None:
        # The answer is replaced as a whole, so a reader never sees half of a change.
        self._answer = self._answer.model_copy(update=changes)

    def _run(self) -> None:
        try:
            state, message = self._work(self)
            self._change(state=state, message=message)
        except UserError as error:
            self._change(state="failed", message=str(error))
        except Exception as error:
            LOGGER.exception("the %s failed", self._answer.action)
            self._change(state="failed", message=f"{type(error).__name__}: {error}")
