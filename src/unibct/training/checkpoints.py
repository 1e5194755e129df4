"""Checkpoints of a training run: written by all ranks, complete or not at all, without pickle.

A checkpoint is a folder ``checkpoint-EPOCH-STEP``. In it, ``state.safetensors`` holds network,
optimiser and method, with the run's description, progress and generators as JSON in its header;
each rank adds ``classes-BEGIN-END.safetensors`` with the rows of its classes. The folder is written
under a temporary name, synced and renamed; then older checkpoints are removed.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.errors import UserError, first_line
from unibct.files import sync
from unibct.models.model_folder import save_tensors

_STATE_FILE = "state.safetensors"
_FOLDER_NAME = re.compile(r"checkpoint-(\d+)-(\d+)")
_DAMAGE_ERRORS = (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint, as one rank sees it.

    Attributes:
        state: plain values, the same on each rank.
        tensors: the same on each rank.
        class_tensors: (own classes, …) the rows of this rank's classes.
    """

    state: dict[str, Any]
    tensors: dict[str, Tensor]
    class_tensors: dict[str, Tensor]


def save_checkpoint(
    folder: Path,
    place: tuple[int, int],
    checkpoint: Checkpoint,
    *,
    classes: int,
    ranks: Ranks = ALONE,
) -> None:
    """Write a checkpoint, then remove older ones. Every rank calls this.

    Args:
        folder: the run's folder, on a file system that all ranks share.
        place: epoch and step.
        checkpoint: the content; the first rank writes the state and the tensors, each rank the
            rows of its classes.
        classes: the number of all classes.
        ranks: the processes that write together.
    """
    name, own_classes = _folder_name(*place), ranks.share(classes)
    final, temporary = folder / name, folder / f".{name}.tmp"
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
        for path in _all_checkpoints(folder):
            if path != final:
                shutil.rmtree(path, ignore_errors=True)
    ranks.barrier()


def find_checkpoint(folder: Path, ranks: Ranks = ALONE) -> Path | None:
    """Return the latest checkpoint in a run's folder, as the first rank sees it."""
    latest = max(map(_place, _all_checkpoints(folder)), default=(-1, -1))
    epoch, step = ranks.broadcast_numbers(*latest)
    return None if epoch < 0 else folder / _folder_name(epoch, step)


def checkpoint_folder(folder: Path, epoch: int, step: int) -> Path:
    """Return where the checkpoint of an epoch and step is in a run's folder."""
    return folder / _folder_name(epoch, step)


def read_checkpoint_values(path: Path) -> dict[str, Any]:
    """Read the plain values of a checkpoint without its tensors."""
    try:
        return _read_values(path)
    except _DAMAGE_ERRORS as error:
        raise _damaged(path, error) from error


def read_checkpoint(path: Path, classes: range | None = None) -> Checkpoint:
    """Read a checkpoint with the rows of some classes, whichever ranks wrote them.

    Args:
        path: the checkpoint's folder.
        classes: the classes whose rows to read. None means all.
    """
    try:
        state = _read_values(path)
        tensors = safetensors.torch.load_file(path / _STATE_FILE)
        return Checkpoint(state, tensors, _read_rows(path, classes))
    except _DAMAGE_ERRORS as error:
        raise _damaged(path, error) from error


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a run, and what a killed process left of one."""
    for path in [*_all_checkpoints(folder), *folder.glob(".checkpoint-*.tmp")]:
        shutil.rmtree(path, ignore_errors=True)


def _read_values(path: Path) -> dict[str, Any]:
    with cast(Any, safetensors.safe_open(path / _STATE_FILE, framework="pt")) as file:
        return json.loads(file.metadata()["state"])


def _damaged(path: Path, error: Exception) -> UserError:
    reason = first_line(error)
    return UserError(f"{path} is damaged ({reason}); remove {path.parent} and train again")


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


def _all_checkpoints(folder: Path) -> list[Path]:
    folders = (path for path in folder.glob("checkpoint-*") if path.is_dir())
    return [path for path in folders if _FOLDER_NAME.fullmatch(path.name)]


def _folder_name(epoch: int, step: int) -> str:
    return f"checkpoint-{epoch:05}-{step:08}"


def _place(path: Path) -> tuple[int, int]:
    match = _FOLDER_NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])
