"""Checkpoints of a training run: written by all ranks, whole or not at all; nothing pickled.

A checkpoint is a folder ``checkpoint-EPOCH-STEP`` with ``state.safetensors`` (network, optimiser,
method; the run's description, progress and generators as JSON in its header), and per rank
``classes-BEGIN-END.safetensors`` with the rows of its classes. It is written beside under a
temporary name, synced, and renamed; then the older ones go.
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
from unibct.errors import UserError
from unibct.files import sync
from unibct.models.folder import save_tensors

_STATE_FILE = "state.safetensors"
_NAME = re.compile(r"checkpoint-(\d+)-(\d+)")
_DAMAGE = (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """What was kept of a run.

    Attributes:
        path: its folder.
        state: plain values.
        tensors: the same on each rank.
        class_tensors: (own classes, …) the rows of one rank's classes.
    """

    path: Path
    state: dict[str, Any]
    tensors: dict[str, Tensor]
    class_tensors: dict[str, Tensor]


def save_checkpoint(
    folder: Path,
    place: tuple[int, int],
    state: dict[str, Any],
    tensors: dict[str, Tensor],
    class_tensors: dict[str, Tensor],
    *,
    classes: int,
    ranks: Ranks = ALONE,
) -> None:
    """Write a checkpoint, then remove the older ones; called by every rank.

    Args:
        folder: the run's; on a file system that all ranks share.
        place: epoch and step.
        state: plain values; the first rank's count.
        tensors: the first rank's count.
        class_tensors: the rows of this rank's classes.
        classes: how many there are in all.
        ranks: that write together.
    """
    name, own = _name(*place), ranks.share(classes)
    final, temporary = folder / name, folder / f".{name}.tmp"
    if ranks.broadcast_numbers(final.is_dir())[0]:  # another run's, of the same warm-up
        return
    ranks.barrier()
    if ranks.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    ranks.barrier()
    rows_file = temporary / f"classes-{own.start:010}-{own.stop:010}.safetensors"
    save_tensors(rows_file, class_tensors, {"format": "pt"})
    ranks.barrier()
    if ranks.first:
        save_tensors(temporary / _STATE_FILE, tensors, {"state": json.dumps(state)})
        temporary.rename(final)
        sync(folder)
        for older in _all(folder):
            if older != final:
                shutil.rmtree(older, ignore_errors=True)
    ranks.barrier()


def find_checkpoint(folder: Path, ranks: Ranks = ALONE) -> Path | None:
    """The last whole checkpoint in a run's folder, as the first of the ranks sees it."""
    epoch, step = ranks.broadcast_numbers(*max(map(_place, _all(folder)), default=(-1, -1)))
    return None if epoch < 0 else folder / _name(epoch, step)


def read_checkpoint(path: Path, classes: range | None = None) -> Checkpoint:
    """A checkpoint with the rows of some classes (None: all), whichever ranks wrote them."""
    try:
        state_file = path / _STATE_FILE
        with cast(Any, safetensors.safe_open(state_file, framework="pt")) as file:
            state = json.loads(file.metadata()["state"])
        tensors = safetensors.torch.load_file(state_file)
        return Checkpoint(path, state, tensors, _read_rows(path, classes))
    except _DAMAGE as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path} is damaged ({reason}); remove it, or the run's folder, and train anew"
        ) from error


def remove_checkpoints(folder: Path) -> None:
    """Remove a finished run's checkpoints, and what a killed process left of one."""
    for path in [*_all(folder), *folder.glob(".checkpoint-*.tmp")]:
        shutil.rmtree(path, ignore_errors=True)


def _read_rows(path: Path, classes: range | None) -> dict[str, Tensor]:
    """The rows of ``classes`` from the files whose classes they are."""
    parts: dict[str, list[Tensor]] = {}
    expected = 0 if classes is None else classes.start
    for file_path in sorted(path.glob("classes-*.safetensors")):
        _, begin_text, end_text = file_path.stem.split("-")
        held = range(int(begin_text), int(end_text))
        wanted = held if classes is None else classes
        begin, end = max(held.start, wanted.start), min(held.stop, wanted.stop)
        if begin >= end:
            continue
        if begin != expected:
            raise ValueError(f"the rows of class {expected} are missing")
        with cast(Any, safetensors.safe_open(file_path, framework="pt")) as file:
            for name in file.keys():  # noqa: SIM118 (not a dictionary)
                rows = file.get_slice(name)[begin - held.start : end - held.start]
                parts.setdefault(name, []).append(rows)
        expected = end
    if classes is not None and expected != classes.stop:
        raise ValueError(f"the rows of class {expected} are missing")
    return {name: torch.cat(rows) for name, rows in parts.items()}


def _all(folder: Path) -> list[Path]:
    return [p for p in folder.glob("checkpoint-*") if _NAME.fullmatch(p.name) and p.is_dir()]


def _name(epoch: int, step: int) -> str:
    return f"checkpoint-{epoch:05}-{step:08}"


def _place(path: Path) -> tuple[int, int]:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1]), int(found[2])
