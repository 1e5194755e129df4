"""Training a model, alone or so that it is compatible with an old one."""

import hashlib
import shutil
from pathlib import Path

import torch

from unibct.data.image_set import ImageSet
from unibct.data.loader import pixel_memory, read_pixels
from unibct.distributed.device import pick_device
from unibct.distributed.ranks import Ranks, current_ranks
from unibct.errors import UserError
from unibct.files import remove_temporaries, require_absent
from unibct.models.architectures.table import find_architecture
from unibct.models.folder import (
    CLASSIFIER_FILE,
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    load_model,
    save_model,
)
from unibct.models.model import Model
from unibct.progress import Progress, Silent
from unibct.training.checkpoints import find_checkpoint, read_checkpoint, remove_checkpoints
from unibct.training.plan import Run, plan_run, require_same_run
from unibct.training.recipe import Recipe
from unibct.training.tracking import TensorBoard, require_tensorboard
from unibct.training.trainer import (
    METRICS_FILE,
    NEW_EMBEDDINGS,
    OLD_EMBEDDINGS,
    Trainer,
    images_per_epoch,
)

_OWN_FILES = (METRICS_FILE, WEIGHTS_FILE, CLASSIFIER_FILE, DESCRIPTION_FILE)
_LEFTOVERS = (OLD_EMBEDDINGS, NEW_EMBEDDINGS, "logs")  # of a run stopped in its first epoch


def train(
    images: ImageSet,
    recipe: Recipe,
    out: str | Path,
    *,
    old: Model | None = None,
    method: str | None = None,
    resume: bool = False,
    skip_bad: bool = False,
    cache: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    checkpoint_every: int | None = None,
    tensorboard: Path | None = None,
    label: str = "training",
    progress: Progress | None = None,
) -> Model:
    """Train a model and write its folder.

    Started by ``torchrun``, each process calls this and takes its part of every batch and of the
    classes; ``out`` must then be on a file system that all of them share.

    Args:
        images: the training set.
        recipe: every number of the run.
        out: the model's folder; while training it holds a checkpoint and the metrics.
        old: the old model that the new one is to be compatible with.
        method: a name from ``METHODS``; by default ``unibct-plus`` with an old
            model, else ``none``.
        resume: go on from the checkpoint in ``out``, if there is one of the same run; to the bit
            if the processes are as many as they were, else to rounding.
        skip_bad: leave unreadable images out instead of refusing.
        cache: a folder in which several runs share what they have in common: the old embeddings
            of a training set, and the state at the end of the same warm-up. The result is the same.
        device: ``auto``, ``cpu``, ``cuda``, …
        workers: threads that read and change images ahead; 0: none. The result is the same.
        checkpoint_every: steps between checkpoints within an epoch; by default there is one at
            the end of each epoch. The result is the same.
        tensorboard: a folder for TensorBoard's event files.
        label: what the progress bar calls it.
        progress: told of each image.

    Returns:
        The trained model, in evaluation mode; of several processes the first has its class weights.
    """
    progress, out, ranks = progress or Silent(), Path(out), current_ranks()
    run = plan_run(images, recipe, old=old, method=method)
    _check_ranks(ranks, run)
    target = pick_device(device)
    if tensorboard is not None:
        require_tensorboard()
    if ranks.world > 1:
        options = (run.digest, resume, skip_bad, checkpoint_every, pixel_memory())
        _require_started_alike(ranks, repr(options), target)
    if resume and ranks.first:
        remove_temporaries(out, _OWN_FILES)
    finished = resume and bool(ranks.broadcast_numbers((out / DESCRIPTION_FILE).is_file())[0])
    found = find_checkpoint(out, ranks) if resume and not finished else None
    if not finished and found is None:
        _require_nothing_but_leftovers(out)

    spec = find_architecture(run.recipe.architecture).input
    pixels = read_pixels(images, *spec.size, skip_bad=skip_bad, progress=progress, ranks=ranks)
    run = plan_run(pixels.images, recipe, old=old, method=method)
    _check_ranks(ranks, run)  # without the images that were left out
    described = run.described() | {"pixels": pixels.digest}
    if finished:
        model = load_model(out, device=target)
        require_same_run(model.training, described, out)
        _remove_working_files(out, ranks)
        progress.note(f"{out}: already trained")
        work = images_per_epoch(len(pixels.images), run.recipe.batch_size) * run.recipe.epochs
        with progress.task(label, work, done=work):
            return model
    own = ranks.share(len(pixels.images.class_names))
    checkpoint = None if found is None else read_checkpoint(found, own)
    if checkpoint is not None:
        require_same_run(checkpoint.state["described"], described, out)
    ranks.barrier()  # nothing is written before all have looked
    tracker = None
    try:
        trainer = Trainer(
            run, described, pixels, spec, target, out, cache, ranks, workers, checkpoint_every
        )
        if old is not None and run.recipe.warm_start:
            trainer.start_from(old)
        if old is not None:
            trainer.learn_from(old, progress)
        if checkpoint is not None:
            trainer.restore(checkpoint)
        else:
            trainer.take_up_warmup()
        if tensorboard is not None and ranks.first:
            tracker = TensorBoard(tensorboard, trainer.steps_done)
            trainer.tracker = tracker
        trainer.train(label, progress)
        if ranks.first:
            save_model(trainer.finished_model(), out)
    except UserError:
        if ranks.first and find_checkpoint(out) is None:
            shutil.rmtree(out, ignore_errors=True)
        raise
    finally:
        if tracker is not None:
            tracker.close()
    ranks.barrier()
    _remove_working_files(out, ranks)
    return load_model(out, device=target, with_classifier=ranks.first)


def _check_ranks(ranks: Ranks, run: Run) -> None:
    if ranks.world == 1:
        return
    batch_size, images = run.recipe.batch_size, run.images
    if batch_size % ranks.world:
        raise UserError(
            f"batch_size = {batch_size} cannot be divided evenly by {ranks.world} processes; "
            "choose a multiple"
        )
    for count, what in ((len(images), "images"), (len(images.class_names), "classes")):
        needed = batch_size if what == "images" else ranks.world
        if count < needed:
            raise UserError(
                f"{count} {what} are too few for {ranks.world} processes (batch_size = "
                f"{batch_size}); train in one process"
            )


def _require_started_alike(ranks: Ranks, options: str, device: torch.device) -> None:
    """Refuse processes that would wait for each other in different places, or train nonsense."""
    own = int(hashlib.sha256(options.encode()).hexdigest()[:15], 16)
    if ranks.any(ranks.broadcast_numbers(own)[0] != own, device):
        raise UserError(
            "the processes were not started alike: give each the same command, data and "
            "environment, on every machine"
        )


def _remove_working_files(out: Path, ranks: Ranks) -> None:
    if ranks.first:
        remove_checkpoints(out)
        for name in (OLD_EMBEDDINGS, NEW_EMBEDDINGS):
            shutil.rmtree(out / name, ignore_errors=True)


def _require_nothing_but_leftovers(out: Path) -> None:
    """Refuse a folder that holds anything but what a run stopped in its first epoch leaves."""
    names = [path.name for path in out.iterdir()] if out.is_dir() else []
    own = [name for name in names if name in _LEFTOVERS or name.startswith(".checkpoint-")]
    if out.is_file() or len(own) < len(names):
        require_absent(out)
