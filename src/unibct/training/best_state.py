"""The best state of a run, kept beside its checkpoint until the model is finished.

After an epoch with the best recall@1 so far, ``.best-EPOCH`` is a copy of the checkpoint that the
epoch ended with. It is made after that checkpoint, whose metrics say which epoch is the best, so
that a run which was killed in between makes it when it continues.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unibct.files import sync
from unibct.training.checkpoints import checkpoint_folder
from unibct.training.context import RunContext
from unibct.training.state import TrainingState
from unibct.training.validation_recall import best_row

BEST_MODEL = "best"  # folder of the finished model, in the run's


def keep_best(context: RunContext, state: TrainingState) -> None:
    """Keep the checkpoint of the epoch that has just ended, if it is the best one."""
    best = best_row(context, state.metrics)
    just_ended = best is not None and state.step == 0 and best["epoch"] == state.epoch - 1
    if not just_ended or not context.ranks.first:
        return
    final = _folder(context.out, state.epoch - 1)
    if not final.is_dir():
        temporary = final.with_name(f"{final.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for file in checkpoint_folder(context.out, state.epoch, 0).iterdir():
            _link(file, temporary / file.name)
        temporary.rename(final)
        sync(context.out)
    for path in context.out.glob(".best-*"):
        if path != final:
            shutil.rmtree(path, ignore_errors=True)


def best_checkpoint(context: RunContext, rows: Sequence[dict[str, Any]]) -> Path | None:
    """Return the folder of the best state, if the run has one."""
    best = best_row(context, rows)
    return None if best is None else _folder(context.out, best["epoch"])


def remove_best_states(out: Path) -> None:
    """Remove the working copies of best states."""
    for path in out.glob(".best-*"):
        shutil.rmtree(path, ignore_errors=True)


def _folder(out: Path, epoch: int) -> Path:
    return out / f".best-{epoch:05}"


def _link(file: Path, copy: Path) -> None:
    """Give a file a second name; copy it where the file system has no such thing."""
    try:
        os.link(file, copy)
    except OSError:
        shutil.copyfile(file, copy)
        sync(copy)
