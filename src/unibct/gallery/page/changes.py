"""What the page may change: begin and pause a backfill, and go back. In the background."""

import threading
from pathlib import Path
from typing import Any

from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.gallery.backfill import Backfilled
from unibct.gallery.folder import GalleryBusyError
from unibct.gallery.gallery import Gallery
from unibct.gallery.page.answers import BackfillBody, JobAnswer
from unibct.gallery.page.job import BusyError, Job, Outcome
from unibct.gallery.rollback import RolledBack, earlier_model, rollback_target
from unibct.gallery.savings import Savings
from unibct.gallery.shelf import ONLY_STORED


class GalleryChanges:
    """One change at a time, each with a gallery that is opened for it."""

    def __init__(self, path: Path, images: ImageSet | None = None, *, device: Any = "cpu") -> None:
        """Take note of what is changed.

        Args:
            path: of the gallery's folder.
            images: of its rows, by id; None if they are not given.
            device: where models compute.
        """
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
            raise BusyError("a backfill needs the images of the rows: serve with --images DATA")
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
        return Gallery(self._path, device=self._device, progress=job)

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
