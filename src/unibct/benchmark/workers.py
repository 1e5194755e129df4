"""Worker processes that run several jobs at the same time, each job after those that it needs.

Each worker is a process with a fixed number of threads. On a few cores, several workers with one
thread each are faster than one process with all threads. A worker ends when its parent ends, even
if the parent is killed, so that a killed benchmark can be started again at once.
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
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeAlias, cast

from unibct import progress
from unibct.benchmark.execution import run_job
from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import Workspace, is_finished
from unibct.data.loader import MEMORY_VARIABLE, pixel_memory
from unibct.errors import UserError
from unibct.progress import Advance

OnChange: TypeAlias = Callable[["Board", Job | None], None]
State: TypeAlias = Literal["waiting", "running", "finished", "failed", "left out"]
# A fork would share this process's locks, threads and GPU.
_CONTEXT: BaseContext = multiprocessing.get_context("spawn")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Board:
    """The state of every job, by the job's folder. The live table shows it."""

    jobs: Sequence[Job]  # each after those that it needs
    states: dict[str, State] = field(default_factory=dict[str, State])
    # Of each running job: how many images it has trained on so far, and images per second.
    trained_images: dict[str, int] = field(default_factory=dict[str, int])
    rates: dict[str, float] = field(default_factory=dict[str, float])
    errors: dict[str, str] = field(default_factory=dict[str, str])  # message of each failed job

    def next_ready(self) -> Job | None:
        """Return the first waiting job that need not wait for another one, or None.

        A job that needs a failed one is left out, so it never waits for it.
        """
        unfinished = {f for f, state in self.states.items() if state in ("waiting", "running")}
        for job in self.jobs:
            if self.states[job.folder] == "waiting" and unfinished.isdisjoint(
                job.needs + job.after
            ):
                return job
        return None

    def fail(self, job: Job, message: str) -> None:
        """Record the error of a job, and leave out every job that needs it."""
        self.states[job.folder] = "failed"
        self.errors[job.folder] = message
        unavailable = {job.folder}
        for other in self.jobs:
            if unavailable & set(other.needs) and self.states[other.folder] == "waiting":
                self.states[other.folder] = "left out"
                unavailable.add(other.folder)

    @property
    def work_left(self) -> int:
        """The number of images that have yet to go through training."""
        unfinished = sum(
            job.work for job in self.jobs if self.states[job.folder] in ("waiting", "running")
        )
        return max(unfinished - sum(self.trained_images.values()), 0)


def last_line(message: str) -> str:
    """Return the last line of a message; in a traceback it says what went wrong."""
    return message.strip().splitlines()[-1]


@dataclass
class Worker:
    """A process, the pipe to it, and the job that it is running."""

    process: BaseProcess
    pipe: Any  # a Connection, whose type depends on the system
    job: Job | None = None


def run_jobs(
    workspace: Workspace,
    jobs: Sequence[Job],
    *,
    workers: int,
    threads: int,
    on_change: OnChange,
) -> Board:
    """Run every job that is not finished, and return the state of every job at the end.

    A failed job stops only the jobs that need it. Jobs come after those that they need.
    ``on_change`` is called with the board and a job when the job begins or ends, and with the board
    and None every half second.
    """
    board = Board(jobs)
    for job in jobs:
        board.states[job.folder] = "finished" if is_finished(workspace.out, job) else "waiting"
    on_change(board, None)
    with WorkerPool(workspace, workers, threads) as pool:
        while True:
            while (job := board.next_ready()) is not None and pool.assign(job):
                board.states[job.folder] = "running"
                on_change(board, job)
            if not (busy := pool.busy):
                break
            signalled = wait(
                [w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout=0.5
            )
            for worker in busy:
                has_news = worker.pipe in signalled or worker.process.sentinel in signalled
                if has_news and not _receive(worker, board, on_change):
                    pool.discard(worker)
            on_change(board, None)
    on_change(board, None)
    return board


def _receive(worker: Worker, board: Board, on_change: OnChange) -> bool:
    """Read one message of a worker onto the board, and return whether the worker is alive.

    If it has died, its job has failed.
    """
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
            board.trained_images[job.folder], board.rates[job.folder] = value
            return alive
        if kind == "failed":
            board.fail(job, value)
        else:
            board.states[job.folder] = "finished"
    board.trained_images.pop(job.folder, None)
    board.rates.pop(job.folder, None)
    worker.job = None
    on_change(board, job)
    return alive


class WorkerPool:
    """At most ``size`` workers, started when there is a job for them and replaced if they die."""

    def __init__(self, workspace: Workspace, size: int, threads: int) -> None:
        self._workspace = replace(workspace)  # without the images that this process has opened
        self._size = size
        self._threads = threads
        self._workers: list[Worker] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()  # safe: files are written whole or not at all
        for worker in self._workers:
            worker.process.join()

    @property
    def busy(self) -> list[Worker]:
        """The workers that are running a job."""
        return [worker for worker in self._workers if worker.job is not None]

    def assign(self, job: Job) -> bool:
        """Send a job to a free worker, and return False if there is none."""
        for worker in [worker for worker in self._workers if worker.job is None]:
            try:
                worker.pipe.send(job)
            except OSError:  # it died while it was idle
                self.discard(worker)
            else:
                worker.job = job
                return True
        if len(self._workers) >= self._size:
            return False
        worker = self._start()
        worker.job = job
        with suppress(OSError):  # if it is dead already, _receive will find out
            worker.pipe.send(job)
        self._workers.append(worker)
        return True

    def discard(self, worker: Worker) -> None:
        """Remove a worker that has died."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()

    def _start(self) -> Worker:
        own_end, worker_end = _CONTEXT.Pipe()
        arguments = (self._workspace, worker_end, self._threads)
        process = cast(Any, _CONTEXT).Process(target=_work, args=arguments, daemon=True)
        with _environment(  # the process reads these variables when it starts
            dict.fromkeys(_THREAD_VARIABLES, str(self._threads))
            | {MEMORY_VARIABLE: str(pixel_memory() // self._size)}
        ):
            process.start()
        worker_end.close()
        return Worker(process, own_end)


@contextmanager
def _environment(changes: dict[str, str]) -> Generator[None]:
    """Change environment variables inside the ``with`` block."""
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
    """Run the jobs that arrive through the pipe, until it is closed; the main of a worker."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            job = cast(Job, pipe.recv())
        except (EOFError, OSError):
            return
        try:
            with progress.shown(_Reporter(pipe, job)):
                run_job(workspace, job)
        except UserError as error:
            pipe.send(("failed", str(error)))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
        else:
            pipe.send(("finished", None))


def _end_with_parent() -> None:
    """Wait for the parent process to end, then end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Reporter:
    """Progress that sends the parent the number of images that a job has trained on."""

    def __init__(self, pipe: Any, job: Job) -> None:
        self._pipe = pipe
        self._job = job

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        """Report the images of the training, at most twice a second."""
        import time

        begin = last = time.monotonic()
        # A warm-up that the job shares with others is not part of its own work.
        done_before = max(done - (total - self._job.work), 0)
        done_now = 0

        def advance(count: int, status: str | None = None) -> None:
            nonlocal done_now, last
            done_now += count
            now = time.monotonic()
            if weight == 1 and now - last > 0.5:
                last = now
                self._pipe.send(("progress", (done_before + done_now, done_now / (now - begin))))

        yield advance

    def note(self, text: str) -> None:
        """Do nothing: the parent shows no messages."""
