"""The lock of a run's folder: two trainings would destroy each other's checkpoints there.

The operating system holds the lock, so a process that is killed releases it. A file next to it
says which process it is, for the message to the second one.
"""

import os
import platform
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from unibct.distributed.ranks import Ranks
from unibct.errors import UserError
from unibct.files import remove_temporaries, write_text

LOCK_FILE = ".training.lock"
OWNER_FILE = ".training.owner"


@contextmanager
def run_lock(out: Path, ranks: Ranks) -> Generator[None]:
    """Hold the folder of a run for the duration of a block; refuse if another run holds it.

    The first rank holds it for all of them. The folder is created if necessary, and removed if
    it is empty in the end.

    Args:
        out: the run's folder.
        ranks: the processes of the run; every rank calls this.
    """
    with ExitStack() as stack:
        ranks.ask_first(lambda: stack.enter_context(_folder_lock(out)))
        yield


def remove_lock_files(out: Path) -> None:
    """Remove the files of a lock that nobody needs any more."""
    remove_temporaries(out, (OWNER_FILE,))
    for name in (OWNER_FILE, LOCK_FILE):
        (out / name).unlink(missing_ok=True)


@contextmanager
def _folder_lock(out: Path) -> Generator[None]:
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / LOCK_FILE, blocking=False):
            write_text(out / OWNER_FILE, f"process {os.getpid()} on {platform.node()}\n")
            try:
                yield
            finally:
                remove_lock_files(out)  # while it is held, so that no other process has it
    except Timeout as error:
        raise UserError(
            f"another training is running in {out} ({_owner(out)}); wait until it has finished, "
            "or choose another --out"
        ) from error
    finally:
        with suppress(OSError):  # it is not empty
            out.rmdir()


def _owner(out: Path) -> str:
    """Return the process that holds the lock, if it has written its name already."""
    try:
        return (out / OWNER_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return "a process that has just started"
