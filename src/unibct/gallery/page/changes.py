"""Long work in the background: one piece at a time, with its progress, and it can be paused."""

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from unibct import progress
from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.gallery.backfill import Backfilled
from unibct.gallery.gallery import Gallery
from unibct.gallery.gallery_folder import ONLY_STORED, GalleryBusyError
from unibct.gallery.page.answers import BackfillBody, JobAnswer
from unibct.gallery.rollback import RolledBack, earlier_model, rollback_target
from unibct.gallery.status import Savings
from unibct.progress import Advance

Action = Literal["backfill", "rollback"]
Outcome = tuple[Literal["done", "paused"], str]
LOGGER = logging.getLogger("unibct.gallery.page")


class BusyError(UserError):
    """The gallery is in a state in which this cannot be done now."""


class Job:
    """A piece of work in a thread, and the progress that it reports."""

    def __init__(self, action: Action, work: Callable[["Job"], Outcome]) -> None:
        """Describe the work: it reports its progress to the job, and says how it ended."""
        self.pause_wanted = threading.Event()  # set when somebody asks for a pause
        # called in the job's thread, between two pieces of work, if a pause is wanted
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
            with progress.shown(self):
                state, message = self._work(self)
            self._change(state=state, message=message)
        except UserError as error:
            self._change(state="failed", message=str(error))
        except Exception as error:
            LOGGER.exception("the %s failed", self._answer.action)
            self._change(state="failed", message=f"{type(error).__name__}: {error}")


# What the page may change: begin and pause a backfill, and go back. In the background.


class GalleryChanges:
    """One change at a time, each with a gallery that is opened for it."""

    def __init__(self, path: Path, images: ImageSet | None = None, *, device: Any = "auto") -> None:
        """Take note of what is changed; the images are those of its rows, by id, if given."""
        self._path = path
        self._images = images
        self._device = device
        self._lock = threading.Lock()
        self._job: Job | None = None

    @property
    def job(self) -> JobAnswer | None:
        """How far the change is that runs, or that has ended last."""
        return None if self._job is None else self._job.answer

    def backfill(self, body: BackfillBody) -> JobAnswer:
        """Begin to embed older rows again, or continue."""
        if self._images is None:
            raise BusyError(
                "a backfill needs the images of the rows: serve the gallery with images"
            )
        images = self._images

        def work(job: Job) -> Outcome:
            gallery = self._opened(job)
            try:
                job.pause_work = gallery.pause
                done = gallery.backfill(images, share=body.share, order=body.order, seed=body.seed)
                return "paused" if done.paused else "done", backfill_text(done)
            finally:
                gallery.close()

        with self._lock:
            gallery = self._idle()
            try:
                savings: Savings = gallery.status().savings
            finally:
                gallery.close()
            if not savings.rows:
                raise BusyError("no rows of older models are left to embed again")
            return self._begin(Job("backfill", work))

    def pause(self) -> JobAnswer | None:
        """Ask the backfill to stop after its batch; also one of another process."""
        job = self._job
        if job is not None and job.is_running:
            if job.answer.action != "backfill":
                raise BusyError("a rollback cannot be paused")
            job.pause_wanted.set()
            return job.answer
        if job is not None and job.answer.state == "paused":
            raise BusyError("the backfill is paused already")
        gallery = Gallery(self._path)
        if gallery.folder.state.open_backfill is None:
            raise BusyError("no backfill is under way")
        gallery.pause()
        return self.job

    def rollback(self, to: int | None = None) -> JobAnswer:
        """Begin to go back to before a step, or continue: one that was stopped comes first."""
        with self._lock:
            gallery = self._idle()
            state = gallery.folder.state
            gallery.close()
            try:
                target = rollback_target(state, to, images=self._images is not None)
            except UserError as error:
                raise BusyError(str(error)) from error
            is_stored = earlier_model(state, target).source == ONLY_STORED
            images = None if is_stored else self._images

            def work(job: Job) -> Outcome:
                gallery = self._opened(job)
                try:
                    done = gallery.rollback(target.number, images)
                    return "done", rollback_text(done, gallery.folder.state.searching.name)
                finally:
                    gallery.close()

            return self._begin(Job("rollback", work))

    def stop(self) -> None:
        """Pause what runs, and wait until it has stopped."""
        if self._job is not None:
            self._job.pause_wanted.set()
            self._job.wait()

    def _opened(self, job: Job) -> Gallery:
        return Gallery(self._path, device=self._device)

    def _idle(self) -> Gallery:
        """Return the opened gallery, if nobody writes to it."""
        if self._job is not None and self._job.is_running:
            raise BusyError(f"a {self._job.answer.action} is running; wait, or pause it")
        gallery = Gallery(self._path)
        try:
            with gallery.folder.writing():
                return gallery
        except GalleryBusyError as error:
            raise BusyError(str(error)) from error

    def _begin(self, job: Job) -> JobAnswer:
        self._job = job
        job.start()
        return job.answer


def backfill_text(done: Backfilled) -> str:
    """Return one line about a backfill that has ended."""
    text = (
        f"{done.rows:,} rows embedded again; {done.rows_in_space:,} of {done.total:,} rows are "
        "now the searching model's own"
    )
    if done.paused:
        text += "; paused: press Backfill to continue"
    if done.missing:
        text += f"; {done.missing:,} rows have no image, first {done.first_missing!r}"
    return text


def rollback_text(done: RolledBack, name: str) -> str:
    """Return one line about a rollback that has ended."""
    text = f"The gallery is as before step {done.to}: {name} searches"
    if done.restored:
        text += f"; {done.restored:,} rows were embedded by it from their images"
    if done.unsearchable:
        text += f"; {done.unsearchable:,} rows of newer models are kept, but it cannot search them"
    return text
