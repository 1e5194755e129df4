"""Worker processes that run jobs side by side, each job after those it needs.

Each worker is a process of its own with a fixed number of threads: on a few cores, one-threaded
workers are faster than one process with all threads. A worker ends with its parent, however the
parent ends, so that a benchmark that was killed can be started again at once.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any, Literal, TypeAlias, cast

from unibct.benchmark.execution import run_job
from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import Workspace, is_finished
from unibct.data.loader import MEMORY_VARIABLE, pixel_memory
from unibct.errors import UserError
from unibct.progress import Advance

State: TypeAlias = Literal["waiting", "running", "finished", "failed", "left out"]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Board:
    """Where every job stands; what the live table shows."""

    jobs: Sequence[Job]
    states: dict[str, State] = field(default_factory=dict[str, State])
    done: dict[str, int] = field(default_factory=dict[str, int])  # images of running jobs
    rates: dict[str, float] = field(default_factory=dict[str, float])
    errors: dict[str, str] = field(default_factory=dict[str, str])

    def ready(self) -> Job | None:
        """The first waiting job whose needs are finished."""
        for job in self.jobs:
            if self.states[job.folder] == "waiting" and all(
                self.states.get(need, "finished") == "finished" for need in job.needs
            ):
                return job
        return None

    def fail(self, job: Job, message: str) -> None:
        """Note an error, and leave out what would need the job."""
        self.states[job.folder] = "failed"
        self.errors[job.folder] = message
        lost = {job.folder}
        for other in self.jobs:
            if lost & set(other.needs) and self.states[other.folder] == "waiting":
                self.states[other.folder] = "left out"
                lost.add(other.folder)

    @property
    def work_left(self) -> int:
        """Images through training that are still to come."""
        left = sum(
            job.work for job in self.jobs if self.states[job.folder] in ("waiting", "running")
        )
        return max(left - sum(self.done.values()), 0)


def last_line(message: str) -> str:
    """The line of a traceback, or of any message, that says what was wrong."""
    return message.strip().splitlines()[-1]


@dataclass
class Worker:
    """A process, the pipe to it, and the job it is at."""

    process: SpawnProcess
    pipe: Any  # a Connection, of one kind or another
    job: Job | None = None


def run_jobs(
    workspace: Workspace,
    jobs: Sequence[Job],
    *,
    workers: int,
    threads: int,
    changed: Callable[[Board, Job | None], None],
) -> Board:
    """Run every job that is not finished.

    Args:
        workspace: grid, images and folder.
        jobs: each after those it needs.
        workers: processes at work at the same time.
        threads: of each.
        changed: called when a job begins or ends (with that job), and every half second.

    Returns:
        Where every job stands at the end; a failed one stops only those that need it.
    """
    board = Board(jobs)
    for job in jobs:
        board.states[job.folder] = "finished" if is_finished(workspace.out, job) else "waiting"
    changed(board, None)
    with Crew(workspace, workers, threads) as crew:
        while True:
            while (job := board.ready()) is not None and crew.give(job):
                board.states[job.folder] = "running"
                changed(board, job)
            if not (busy := crew.busy):
                break
            heard = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout=0.5)
            for worker in busy:
                heard_of = worker.pipe in heard or worker.process.sentinel in heard
                if heard_of and not _listen(worker, board, changed):
                    crew.dismiss(worker)
            changed(board, None)
    changed(board, None)
    return board


def _listen(worker: Worker, board: Board, changed: Callable[[Board, Job | None], None]) -> bool:
    """Take in what a worker says; one that has died fails its job, and the answer is False."""
    job = worker.job
    assert job is not None
    try:
        kind, value = cast(tuple[str, Any], worker.pipe.recv())
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        board.fail(job, f"its process ended with code {code} (killed? out of memory?)")
        alive = False
    else:
        alive = True
        if kind == "progress":
            board.done[job.folder], board.rates[job.folder] = value
            return alive
        if kind == "failed":
            board.fail(job, value)
        else:
            board.states[job.folder] = "finished"
    board.done.pop(job.folder, None)
    board.rates.pop(job.folder, None)
    worker.job = None
    changed(board, job)
    return alive


class Crew:
    """The workers: started when there is a job for them, replaced when they die."""

    def __init__(self, workspace: Workspace, most: int, threads: int) -> None:
        self._bench = replace(workspace)  # without the images that this process has opened
        self._most = most
        self._threads = threads
        self._workers: list[Worker] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()  # every file is written whole or not at all
        for worker in self._workers:
            worker.process.join()

    @property
    def busy(self) -> list[Worker]:
        """Those that are at a job."""
        return [worker for worker in self._workers if worker.job is not None]

    def give(self, job: Job) -> bool:
        """Hand a job to a free worker; False if there is none."""
        for worker in [worker for worker in self._workers if worker.job is None]:
            try:
                worker.pipe.send(job)
            except OSError:  # it died while it had nothing to do
                self.dismiss(worker)
            else:
                worker.job = job
                return True
        if len(self._workers) >= self._most:
            return False
        worker = self._start()
        worker.job = job
        with suppress(OSError):  # dead already: whoever listens to it will know
            worker.pipe.send(job)
        self._workers.append(worker)
        return True

    def dismiss(self, worker: Worker) -> None:
        """Forget one that has died."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()

    def _start(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (self._bench, theirs, self._threads)
        process = context.Process(target=_work, args=arguments, daemon=True)
        with _environment(  # read when it starts
            dict.fromkeys(_THREAD_VARIABLES, str(self._threads))
            | {MEMORY_VARIABLE: str(pixel_memory() // self._most)}
        ):
            process.start()
        theirs.close()
        return Worker(process, ours)


@contextmanager
def _environment(changes: dict[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _work(workspace: Workspace, pipe: Any, threads: int) -> None:
    """A worker's life: run the jobs that it is sent."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            job = cast(Job, pipe.recv())
        except (EOFError, OSError):
            return
        try:
            run_job(workspace, job, _Reporter(pipe, job))
        except UserError as error:
            pipe.send(("failed", str(error)))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
        else:
            pipe.send(("finished", None))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Reporter:
    """Tells the parent how far a job's training is."""

    def __init__(self, pipe: Any, job: Job) -> None:
        self._pipe = pipe
        self._job = job

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Report the training's images, now and then."""
        import time

        begin = last = time.monotonic()
        before = max(done - (total - self._job.work), 0)  # a shared warm-up is not this job's work
        count = 0

        def advance(units: int) -> None:
            nonlocal count, last
            count += units
            now = time.monotonic()
            if weight == 1 and now - last > 0.5:
                last = now
                self._pipe.send(("progress", (before + count, count / (now - begin))))

        yield advance

    def note(self, text: str) -> None:
        """Nothing worth the parent's attention."""
