"""The state at the end of a warm-up, which runs that differ only afterwards share in a cache."""

import shutil
from contextlib import suppress
from pathlib import Path

from unibct.errors import UserError
from unibct.progress import Progress
from unibct.training.checkpoints import find_checkpoint, read_checkpoint
from unibct.training.context import RunContext
from unibct.training.state import TrainingState, restore_state, save_state


def restore_shared_warmup(context: RunContext, state: TrainingState) -> None:
    """Start where another run with the same warm-up was at its end, if the cache has it."""
    folder = _shared_folder(context)
    path = None if folder is None else find_checkpoint(folder, context.ranks)
    if path is None:
        return
    checkpoint = None
    with suppress(UserError):
        checkpoint = read_checkpoint(path, context.own_classes)
    if context.ranks.any(checkpoint is None, context.device):  # damaged: this run writes it again
        if context.ranks.first:
            shutil.rmtree(path, ignore_errors=True)
        return
    assert checkpoint is not None
    restore_state(context, state, checkpoint, with_method=False)
    save_state(context, state, context.out)


def save_shared_warmup(context: RunContext, state: TrainingState, progress: Progress) -> None:
    """Put the state into the cache, if the warm-up has just ended and can be shared."""
    folder = _shared_folder(context)
    if folder is None or state.epoch != context.run.method_start:
        return
    try:
        save_state(context, state, folder)
    except (OSError, UserError) as error:  # for example a full disk
        if context.ranks.world > 1:  # stops all of them, because none may continue alone
            raise
        progress.note(f"{folder} cannot be written ({error}): the next run warms up by itself")


def _shared_folder(context: RunContext) -> Path | None:
    pixels = context.pixels.digest
    if context.validation is not None:  # the metrics of the warm-up have its recall@1
        if context.run.first_usable_epoch < context.run.method_start:
            return None  # its best state may be one of the warm-up, which a cache does not keep
        pixels = f"{pixels} {context.validation.pixels.digest}"
    digest = context.run.warmup_digest(pixels)
    if context.cache is None or digest is None:
        return None
    return context.cache / f"warmup-{digest[:24]}"
