"""Train a model, on its own or compatible with an old one: the public function."""

from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.progress import Progress, Silent
from unibct.training.options import TrainOptions
from unibct.training.recipe import Recipe
from unibct.training.run import run_training
from unibct.training.tracking import Tracker


def train(
    images: ImageSet,
    recipe: Recipe | None,
    out: str | Path,
    *,
    old: Embedder | None = None,
    method: str | None = None,
    resume: bool = False,
    skip_bad: bool = False,
    cache: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    checkpoint_every: int | None = None,
    tensorboard: Path | None = None,
    tracker: Tracker | None = None,
    validation: float | None = None,
    label: str = "training",
    progress: Progress | None = None,
) -> Model:
    """Train a model and write its folder.

    Under ``torchrun`` each process calls this and takes its part of every batch and of the
    classes; ``out`` must then be on a file system that all processes share. ``cache``,
    ``workers`` and ``checkpoint_every`` do not change the result.

    Args:
        images: the training set.
        recipe: every number of the run; None: the shipped recipe that fits, see ``recipe_for``.
        out: the model's folder; during training it holds a checkpoint and the metrics.
        old: what the new one is to be compatible with, a model or what ``open_embedder`` opens.
        method: a name from ``METHODS``; by default ``unibct-plus`` with ``old``, else ``none``.
        resume: continue the same run from the checkpoint in ``out``, if there is one; to the bit
            with the same number of processes, otherwise to rounding.
        skip_bad: leave unreadable images out instead of refusing.
        cache: a folder in which runs share old embeddings and the state after the same warm-up.
        device: ``auto``, ``cpu``, ``cuda``, …
        workers: threads that load images ahead; 0 means none.
        checkpoint_every: steps between checkpoints within an epoch; each epoch ends with one.
        tensorboard: a folder for TensorBoard's event files.
        tracker: anything with ``log(values, step)``; the first process calls it.
        validation: the share of the classes to set aside: the model does not learn them, recall@1
            on them is measured after each epoch, and the best epoch's model is kept in
            ``out/best``. 0 sets none aside. By default 0.1 if that is ten classes or more; a run
            that is resumed keeps its share.
        label: the name of the progress bar.
        progress: reports progress per image.

    Returns:
        The last epoch's model. With several processes only the first one's has class weights.
    """
    _require_opened(images=images, recipe=recipe, old=old)
    if workers is not None and workers < 0:
        raise UserError(f"workers must not be negative, not {workers}")
    options = TrainOptions(
        old=old, method=method, resume=resume, skip_bad=skip_bad, cache=cache, device=device,
        workers=workers, checkpoint_every=checkpoint_every, tensorboard=tensorboard,
        tracker=tracker, validation=validation, label=label, progress=progress or Silent(),
    )  # fmt: skip
    return run_training(images, recipe, Path(out), options)


def _require_opened(**given: object) -> None:
    """Refuse names and paths, which the command line takes in place of what they stand for."""
    opened_by = {"images": "open_images", "recipe": "load_recipe", "old": "open_embedder"}
    for name, value in given.items():
        if isinstance(value, (str, Path)):
            raise UserError(
                f"{name} is the text {str(value)!r}: open it first with "
                f"unibct.{opened_by[name]}({str(value)!r})"
            )
