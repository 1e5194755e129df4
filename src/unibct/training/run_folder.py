"""The lock of a run's folder: two trainings would destroy each other's checkpoints there.

The operating system holds the lock, so a process that is killed releases it. A file next to it
says which process it is, for the message to the second one.
"""

import os
import platform
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unibct.distributed.ranks import Ranks
from unibct.errors import UserError
from unibct.files import read_json, remove_leftovers, require_absent, write_text
from unibct.models.model_folder import CLASSIFIER_FILE, MODEL_DESCRIPTION, WEIGHTS_FILE
from unibct.training.checkpoints import (
    find_checkpoint,
    read_checkpoint_values,
    remove_checkpoints,
)
from unibct.training.tracking import METRICS_FILE
from unibct.training.training_set_embeddings import NEW_EMBEDDINGS, OLD_EMBEDDINGS
from unibct.training.validation import remove_best_states

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
    remove_leftovers(out / OWNER_FILE)
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


# The folder of a run: what an earlier run left there, and what goes when the model is finished.

LOGS = "logs"  # a folder in the run's, with a log of each process
_LOG_FILES = "rank-*.log"
_MODEL_FILES = (METRICS_FILE, WEIGHTS_FILE, CLASSIFIER_FILE, MODEL_DESCRIPTION)
# What a run that was stopped in its first epoch may leave.
_LEFTOVERS = (
    *(OLD_EMBEDDINGS, NEW_EMBEDDINGS, LOGS, LOCK_FILE, OWNER_FILE, ".checkpoint-*"),
    *(f".{name}.*.tmp" for name in (*_MODEL_FILES, OWNER_FILE)),
)


@dataclass(frozen=True)
class EarlierRun:
    """What a run that is resumed finds in its folder.

    Attributes:
        finished: whether the model is there already.
        checkpoint: the checkpoint to continue from, if there is one.
    """

    finished: bool = False
    checkpoint: Path | None = None


def find_earlier_run(out: Path, *, resume: bool, ranks: Ranks) -> EarlierRun:
    """Look for an earlier run in ``out``, the same on every rank.

    A folder that holds anything else is refused, and so is an earlier run unless ``resume``.
    Nothing is changed.
    """
    if resume and ranks.ask_first((out / MODEL_DESCRIPTION).is_file):
        return EarlierRun(finished=True)
    checkpoint = find_checkpoint(out, ranks) if resume else None
    if checkpoint is None:
        ranks.ask_first(lambda: _require_only_leftovers(out))
    return EarlierRun(checkpoint=checkpoint)


def stored_description(out: Path) -> dict[str, Any] | None:
    """Return the description of the run in ``out``; None if there is none, or if it is damaged."""
    with suppress(UserError, KeyError, TypeError):
        if (out / MODEL_DESCRIPTION).is_file():
            return dict(read_json(out / MODEL_DESCRIPTION)["training"])
        checkpoint = find_checkpoint(out)
        return None if checkpoint is None else read_checkpoint_values(checkpoint)["described"]
    return None


def remove_unfinished_files(out: Path, ranks: Ranks) -> None:
    """Remove the temporary files that a killed process left."""
    if ranks.first:
        remove_leftovers(*(out / name for name in _MODEL_FILES))


def remove_working_files(out: Path, ranks: Ranks) -> None:
    """Remove what a finished run no longer needs: checkpoints and cached embeddings."""
    if ranks.first:
        remove_checkpoints(out)
        remove_best_states(out)
        for name in (OLD_EMBEDDINGS, NEW_EMBEDDINGS):
            shutil.rmtree(out / name, ignore_errors=True)
        with suppress(OSError):  # a folder that may only be read
            remove_lock_files(out)


def remove_failed_run(out: Path, ranks: Ranks) -> None:
    """Remove what a run has written that failed before its first checkpoint.

    Old embeddings stay: they may have taken hours, and the next run in this folder uses them.
    """
    if not ranks.first or find_checkpoint(out) is not None:
        return
    remove_checkpoints(out)
    remove_leftovers(*(out / name for name in _MODEL_FILES))
    for name in _MODEL_FILES:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / NEW_EMBEDDINGS, ignore_errors=True)
    for log in (out / LOGS).glob(_LOG_FILES):
        log.unlink(missing_ok=True)
    with suppress(OSError):  # there is none, or it holds files of the user's
        (out / LOGS).rmdir()
    if not any((out / OLD_EMBEDDINGS).glob("*/vectors-*")):
        shutil.rmtree(out / OLD_EMBEDDINGS, ignore_errors=True)


def _require_only_leftovers(out: Path) -> None:
    names = [path.name for path in out.iterdir()] if out.is_dir() else []
    foreign = [n for n in names if not any(fnmatch(n, pattern) for pattern in _LEFTOVERS)]
    if out.is_file() or foreign:
        if find_checkpoint(out) is not None and not (out / MODEL_DESCRIPTION).exists():
            raise UserError(
                f"{out} exists already: a training that was stopped; go on with --resume "
                "(resume=True), or choose another place"
            )
        require_absent(out)
