"""The folder of a run: its lock, its checkpoints, its metrics, and what goes when it is finished.

A checkpoint is a folder ``checkpoint-EPOCH-STEP``. In it, ``state.safetensors`` holds network,
optimiser and method, with the run's description, progress and generators as JSON in its header;
each rank adds ``classes-BEGIN-END.safetensors`` with the rows of its classes. It is written by all
ranks under a temporary name, synced and renamed; then older checkpoints are removed. So it is
complete or not there, and nothing is pickled. ``.best-EPOCH`` is a copy of the checkpoint after
the epoch with the best recall@1 so far.
"""

import csv
import io
import json
import os
import platform
import re
import shutil
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.errors import UserError, first_line
from unibct.files import read_json, remove_leftovers, require_absent, sync, write_text
from unibct.models.model_folder import (
    CLASSIFIER_FILE,
    MODEL_DESCRIPTION,
    WEIGHTS_FILE,
    save_tensors,
)

METRICS_FILE = "metrics.csv"
LOGS = "logs"  # a folder with a log of each process
BEST_MODEL = "best"  # the folder of the best epoch's finished model
# Folders with embeddings of the training set, which methods learn from.
OLD_EMBEDDINGS, NEW_EMBEDDINGS = ".old_embeddings", ".new_embeddings"
LOCK_FILE, OWNER_FILE = ".training.lock", ".training.owner"

_STATE_FILE = "state.safetensors"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)-(\d+)")
_LOG_FILES = "rank-*.log"
_MODEL_FILES = (METRICS_FILE, WEIGHTS_FILE, CLASSIFIER_FILE, MODEL_DESCRIPTION)
# What a run that was stopped in its first epoch may leave.
_LEFTOVERS = (
    *(OLD_EMBEDDINGS, NEW_EMBEDDINGS, LOGS, LOCK_FILE, OWNER_FILE, ".checkpoint-*"),
    *(f".{name}.*.tmp" for name in (*_MODEL_FILES, OWNER_FILE)),
)

# The lock: two trainings in a folder would destroy each other's checkpoints. The operating system
# holds it, so a process that is killed releases it. A file next to it says which process it is,
# for the message to the second one.


@contextmanager
def run_lock(out: Path, ranks: Ranks) -> Generator[None]:
    """Hold the folder of a run for the duration of a block; refuse if another run holds it.

    Every rank calls this, and the first one holds it for all of them. The folder is created if
    necessary, and removed if it is empty in the end.
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
            "or choose another folder (out)"
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


# Checkpoints, and the metrics beside them.


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint, as one rank sees it."""

    state: dict[str, Any]  # plain values, the same on each rank
    tensors: dict[str, Tensor]  # the same on each rank
    class_tensors: dict[str, Tensor]  # (own classes, …) the rows of this rank's classes


def save_checkpoint(
    folder: Path,
    place: tuple[int, int],
    checkpoint: Checkpoint,
    *,
    classes: int,
    ranks: Ranks = ALONE,
) -> None:
    """Write the checkpoint of ``place``, epoch and step; then remove older ones.

    Every rank calls this, with a folder on a file system that all share. The first one writes the
    state and the tensors, and each the rows of its part of ``classes``, the number of all.
    """
    final, own_classes = checkpoint_folder(folder, *place), ranks.share(classes)
    temporary = folder / f".{final.name}.tmp"
    # A run with the same warm-up may have written this checkpoint already.
    if ranks.broadcast_numbers(final.is_dir())[0]:
        return
    ranks.barrier()
    if ranks.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    ranks.barrier()
    rows_file = f"classes-{own_classes.start:010}-{own_classes.stop:010}.safetensors"
    save_tensors(temporary / rows_file, checkpoint.class_tensors, {"format": "pt"})
    ranks.barrier()
    if ranks.first:
        header = {"state": json.dumps(checkpoint.state)}
        save_tensors(temporary / _STATE_FILE, checkpoint.tensors, header)
        temporary.rename(final)
        sync(folder)
        for path in _checkpoints(folder).values():
            if path != final:
                shutil.rmtree(path, ignore_errors=True)
    ranks.barrier()


def find_checkpoint(folder: Path, ranks: Ranks = ALONE) -> Path | None:
    """Return the latest checkpoint in a run's folder, as the first rank sees it."""
    latest = max(_checkpoints(folder), default=(-1, -1))
    epoch, step = ranks.broadcast_numbers(*latest)
    return None if epoch < 0 else checkpoint_folder(folder, epoch, step)


def checkpoint_folder(folder: Path, epoch: int, step: int) -> Path:
    """Return where the checkpoint of an epoch and step is in a run's folder."""
    return folder / f"checkpoint-{epoch:05}-{step:08}"


def read_checkpoint_values(path: Path) -> dict[str, Any]:
    """Read the plain values of a checkpoint without its tensors."""
    opened = cast(Any, safetensors.safe_open)
    with _damage_explained(path), opened(path / _STATE_FILE, framework="pt") as file:
        return json.loads(file.metadata()["state"])


def read_checkpoint(path: Path, classes: range | None = None) -> Checkpoint:
    """Read a checkpoint with the rows of some classes (None: all), whichever ranks wrote them."""
    state = read_checkpoint_values(path)
    with _damage_explained(path):
        tensors = safetensors.torch.load_file(path / _STATE_FILE)
        return Checkpoint(state, tensors, _read_rows(path, classes))


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a run, and what a killed process left of one."""
    for path in [*_checkpoints(folder).values(), *folder.glob(".checkpoint-*.tmp")]:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _damage_explained(path: Path) -> Generator[None]:
    """Say what to do if the files of a checkpoint turn out to be damaged in the block."""
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        reason = first_line(error)
        raise UserError(
            f"{path} is damaged ({reason}); remove {path.parent} and train again"
        ) from error


def _read_rows(path: Path, classes: range | None) -> dict[str, Tensor]:
    """Read the rows of ``classes`` from the files that hold them, one tensor per name."""
    parts: dict[str, list[Tensor]] = {}
    next_class = 0 if classes is None else classes.start
    for file_path in sorted(path.glob("classes-*.safetensors")):
        _, begin_text, end_text = file_path.stem.split("-")
        held = range(int(begin_text), int(end_text))
        wanted = held if classes is None else classes
        begin, end = max(held.start, wanted.start), min(held.stop, wanted.stop)
        if begin >= end:
            continue
        if begin != next_class:
            raise ValueError(f"the rows of class {next_class} are missing")
        with cast(Any, safetensors.safe_open(file_path, framework="pt")) as file:
            for name in file.keys():  # noqa: SIM118 (not a dictionary)
                rows = file.get_slice(name)[begin - held.start : end - held.start]
                parts.setdefault(name, []).append(rows)
        next_class = end
    if classes is not None and next_class != classes.stop:
        raise ValueError(f"the rows of class {next_class} are missing")
    return {name: torch.cat(rows) for name, rows in parts.items()}


def _checkpoints(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the checkpoints in a run's folder by their epoch and step."""
    return {
        (int(match[1]), int(match[2])): path
        for path in folder.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(path.name)) is not None and path.is_dir()
    }


def keep_best_state(out: Path, epoch: int) -> None:
    """Copy the checkpoint that an epoch ended with to ``.best-EPOCH``, and remove older copies."""
    final = best_folder(out, epoch)
    if not final.is_dir():
        temporary = final.with_name(f"{final.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for file in checkpoint_folder(out, epoch + 1, 0).iterdir():
            try:
                os.link(file, temporary / file.name)
            except OSError:  # the file system has no second names
                shutil.copyfile(file, temporary / file.name)
                sync(temporary / file.name)
        temporary.rename(final)
        sync(out)
    for path in out.glob(".best-*"):
        if path != final:
            shutil.rmtree(path, ignore_errors=True)


def best_folder(out: Path, epoch: int) -> Path:
    """Return where the state after an epoch is kept as the best one."""
    return out / f".best-{epoch:05}"


def write_metrics(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write ``metrics.csv`` with the epochs so far; without any, write nothing."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / METRICS_FILE, text.getvalue())


# What an earlier run has left, and what goes when a run ends.


@dataclass(frozen=True)
class EarlierRun:
    """What a run that is resumed finds in its folder."""

    finished: bool = False  # whether the model is there already
    checkpoint: Path | None = None  # the one to continue from, if there is one


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
        for path in out.glob(".best-*"):
            shutil.rmtree(path, ignore_errors=True)
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
                f"{out} exists already: a training that was stopped; go on with the option resume, "
                "or choose another place"
            )
        require_absent(out)
