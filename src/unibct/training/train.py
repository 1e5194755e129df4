"""Checks that the processes of a run can train together."""

import hashlib
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unibct import progress
from unibct.data.image_set import ImageSet, require_outside
from unibct.data.loader import pixel_memory, read_pixels
from unibct.data.training_classes import (
    BEST_EPOCH,
    NO_CLASSES,
    SCORE_SCALE_MEASURED,
    UNKNOWN_CLASSES,
    TrainingClasses,
    choice_on,
)
from unibct.distributed.device import callers_generators_kept, pick_device
from unibct.distributed.ranks import Ranks, current_ranks
from unibct.errors import UserError
from unibct.methods import find_method
from unibct.models.architectures import RANDOM, build_without_weights
from unibct.models.architectures.growth import grown_state
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.models.model_folder import load_model, save_model, tensors_under
from unibct.models.old_space import add_projection, without_projection
from unibct.training.checkpoints import (
    Checkpoint,
    find_checkpoint,
    read_checkpoint,
    read_checkpoint_values,
)
from unibct.training.context import RunContext
from unibct.training.default_recipe import fitted_recipe, recipe_for, unused_settings
from unibct.training.loop import TrainingLoop, restore_shared_warmup
from unibct.training.network import first_classes, recipe_input, slow_precision_note
from unibct.training.plan import (
    UNLEARNT,
    VERSION,
    Run,
    SetAside,
    TrainOptions,
    ValidationSet,
    length_note,
    plan_run,
    require_same_run,
    run_seed,
    set_aside,
    unknown_identities,
)
from unibct.training.recipe import Recipe
from unibct.training.run_folder import (
    EarlierRun,
    find_earlier_run,
    remove_failed_run,
    remove_unfinished_files,
    remove_working_files,
    run_lock,
    stored_description,
)
from unibct.training.state import (
    TrainingState,
    begun_average,
    copy_known_classes,
    initial_state,
    restore_state,
)
from unibct.training.tracking import (
    TensorBoard,
    Tracker,
    Trackers,
    require_tensorboard,
    write_metrics,
)
from unibct.training.training_set_embeddings import make_method
from unibct.training.validation import (
    BEST_MODEL,
    best_checkpoint,
    keep_best,
    note_result,
    note_start,
    validation_record,
    with_score_scale,
)


def require_enough_for_all(run: Run, ranks: Ranks) -> None:
    """Refuse a batch, images or classes that the processes cannot divide among them."""
    if ranks.world == 1:
        return
    batch_size, images = run.recipe.batch_size, run.images
    if batch_size % ranks.world:
        raise UserError(
            f"batch_size = {batch_size} cannot be divided evenly by {ranks.world} processes; "
            "choose a multiple"
        )
    if batch_size == ranks.world and not run.recipe.sync_batch_norm:
        raise UserError(
            f"batch_size = {batch_size} leaves each of {ranks.world} processes one image, and with "
            "sync_batch_norm = false one image is all it normalises over; choose a larger batch"
        )
    for count, needed, what in (
        (len(images), batch_size, "images"),
        (len(images.class_names), ranks.world, "classes"),
    ):
        if count < needed:
            raise UserError(
                f"{count} {what} are too few for {ranks.world} processes (batch_size = "
                f"{batch_size}); train in one process"
            )


def require_started_alike(ranks: Ranks, options: str, device: torch.device) -> None:
    """Refuse processes with different options, which would wait for each other forever.

    Args:
        ranks: the processes.
        options: everything that must be the same, as text.
        device: where the processes compare it.
    """
    own_digest = int(hashlib.sha256(options.encode()).hexdigest()[:15], 16)
    first_digest = ranks.broadcast_numbers(own_digest)[0]
    if ranks.any(first_digest != own_digest, device):
        raise UserError(
            "the processes were not started alike: give each the same command, data and "
            "environment, on every machine"
        )


# One training run from the first check to the finished model.


def run_training(
    images: ImageSet, recipe: Recipe | None, out: Path, options: TrainOptions
) -> Model:
    """Train a model and write its folder; see ``train``."""
    require_outside(images, out)
    given = recipe or recipe_for(images)
    recipe = fitted_recipe(given, images)
    unused = unused_settings(given, recipe)
    if unused is not None:
        progress.note(unused)
    request = _check(images, recipe, out, options)
    earlier = find_earlier_run(out, resume=options.resume, ranks=request.ranks)
    # A finished model is only read.
    with nullcontext() if earlier.finished else run_lock(out, request.ranks):
        # Another run may have worked here until the lock was free.
        earlier = find_earlier_run(out, resume=options.resume, ranks=request.ranks)
        context = _read_images(request, out, options)
        if earlier.finished:
            return _load_finished(context, options)
        remove_unfinished_files(out, context.ranks)
        return _run(context, earlier, options)


def _run(context: RunContext, earlier: EarlierRun, options: TrainOptions) -> Model:
    """Train to the end, from the start or from an earlier run's checkpoint."""
    out = context.out
    checkpoint = _read_own_checkpoint(context, earlier)
    context.ranks.barrier()  # no rank writes before all have checked the folder
    try:
        _train(context, checkpoint, options)
        if context.ranks.first:
            _save_models(context, options)
    except UserError:
        remove_failed_run(out, context.ranks)
        raise
    context.ranks.barrier()
    remove_working_files(out, context.ranks)
    return load_model(out, device=context.device, with_classifier=context.ranks.first)


@dataclass(frozen=True)
class _Request:
    """What was asked for, checked as far as it can be before any image is read.

    Attributes:
        run: the plan of the run; images that turn out to be unreadable change it.
        recipe: as the caller gave it.
        device: where to train.
        ranks: the processes that share the run.
        sets: the images to train on, and those that are set aside.
        first_classes: what the first weights, and finished vectors, have learnt from.
    """

    run: Run
    recipe: Recipe
    device: torch.device
    ranks: Ranks
    sets: SetAside
    first_classes: TrainingClasses


def _check(images: ImageSet, recipe: Recipe, out: Path, options: TrainOptions) -> _Request:
    """Refuse what cannot work, before anything is read or written."""
    ranks = current_ranks()
    share, as_before = ranks.ask_first(lambda: _stored_validation(out, options))
    old, seed = options.old, run_seed(recipe, options.old)
    sets = set_aside(images, share, seed)
    run = plan_run(sets.training, recipe, old=old, method=options.method)
    warm = old if run.recipe.warm_start else None
    first = first_classes(run.recipe)
    if warm is not None:
        first = warm.training_classes
    first |= images.vectors_by or NO_CLASSES
    first = first.without(SCORE_SCALE_MEASURED)  # the new model has its own, if any
    if first != NO_CLASSES:
        sets = set_aside(images, share, seed, UNKNOWN_CLASSES if as_before else first)
        run = plan_run(sets.training, recipe, old=old, method=options.method)
    require_enough_for_all(run, ranks)
    device = pick_device(options.device)
    if options.tensorboard is not None:
        require_tensorboard()
    if ranks.world > 1:
        shared = (options.resume, images.skip_bad, options.checkpoint_every, pixel_memory())
        require_started_alike(ranks, repr((run.digest, *shared)), device)
    return _Request(run, recipe, device, ranks, sets, first)


def _stored_validation(out: Path, options: TrainOptions) -> tuple[float | None, bool]:
    """Return the share to set aside, and whether a run in ``out`` has drawn from all classes.

    A run that is resumed keeps its own share by default, and its classes.
    """
    stored = stored_description(out) if options.resume else None
    if stored is None:
        return options.validation, False
    validation: dict[str, Any] = stored.get("validation", {})
    share = float(validation.get("share", 0.0))
    return share if options.validation is None else options.validation, UNLEARNT not in validation


def _read_images(request: _Request, out: Path, options: TrainOptions) -> RunContext:
    """Read the images; some may be left out, so plan and check again."""
    ranks, sets, frame = request.ranks, request.sets, recipe_input(request.run.recipe).frame
    pixels = read_pixels(request.run.images, frame, ranks=ranks)
    validation = None
    if sets.validation is not None:
        measured = read_pixels(sets.validation, frame, ranks=ranks)
        validation = ValidationSet(measured, sets)
    run = plan_run(pixels.images, request.recipe, old=options.old, method=options.method)
    require_enough_for_all(run, ranks)
    for note in (
        length_note(request.recipe, run.recipe, len(run.images)),
        slow_precision_note(run.recipe.precision, request.device),
    ):
        if note is not None:
            progress.note(note)
    return RunContext(
        run, pixels, request.device, ranks, out, options.cache, validation, request.first_classes
    )


def _load_finished(context: RunContext, options: TrainOptions) -> Model:
    """Load the model of an earlier run that has finished, and report its work as done."""
    model = load_model(context.out, device=context.device, with_classifier=context.ranks.first)
    require_same_run(model.training, context.description, context.out)
    remove_working_files(context.out, context.ranks)
    progress.note(f"{context.out}: already trained")
    work = context.images_per_epoch * context.recipe.epochs
    with progress.task(options.label, work, done=work):
        return model


def _read_own_checkpoint(context: RunContext, earlier: EarlierRun) -> Checkpoint | None:
    if earlier.checkpoint is None:
        return None
    # Another run may have other classes, so its rows cannot be read as this one's.
    stored = read_checkpoint_values(earlier.checkpoint)["described"]
    require_same_run(stored, context.description, context.out)
    before, now = stored.get(VERSION), context.description[VERSION]
    if before != now:
        progress.note(f"{context.out} was begun with unibct {before} and goes on with {now}")
    return read_checkpoint(earlier.checkpoint, context.own_classes)


def _train(context: RunContext, checkpoint: Checkpoint | None, options: TrainOptions) -> None:
    """Train from the checkpoint, from a shared warm-up or from the start, to the last epoch."""
    note_start(context)
    state = _starting_state(context, options)
    if checkpoint is not None:
        restore_state(context, state, checkpoint)
        keep_best(context, state)
    else:
        restore_shared_warmup(context, state)
    with ExitStack() as stack:
        trackers: list[Tracker] = [] if options.tracker is None else [options.tracker]
        if options.tensorboard is not None and context.ranks.first:
            board = TensorBoard(options.tensorboard, state.steps_done(context))
            stack.callback(board.close)
            trackers.append(board)
        stack.enter_context(callers_generators_kept())  # networks may draw random numbers
        tracker = Trackers(trackers) if trackers and context.ranks.first else None
        TrainingLoop(context, state, options, tracker).run()


def _starting_state(context: RunContext, options: TrainOptions) -> TrainingState:
    """Build the state before the first step: from the seed, or from the old model's weights."""
    state, old = initial_state(context), options.old
    if old is None:
        return state
    if context.recipe.warm_start:
        assert isinstance(old, Model)  # plan_run has checked it
        _load_old_weights(context, state, old)
        identities = context.class_identities
        own_classes, ranks = context.own_classes, context.ranks
        copy_known_classes(state.class_weights, identities, own_classes, old, ranks)
        state.average = begun_average(context, state.network, state.class_weights)
        weights = context.recipe.weights
        if weights not in (None, RANDOM):
            progress.note(f"warm_start: from the old model's weights, not from {weights}")
        unknown = unknown_identities(old, context.pixels.images)
        if unknown is not None:
            progress.note(f"no class weights are taken from the old model: {unknown}")
    state.use_method(make_method(context, old))
    return state


def _load_old_weights(context: RunContext, state: TrainingState, old: Model) -> None:
    """Take the old model's weights; a larger network grows from them."""
    weights = without_projection(old.network.state_dict())
    if context.architecture.name != old.architecture:
        weights = grown_state(weights, state.network, seed=context.run.seed)
    try:
        state.network.load_state_dict(weights)
    except RuntimeError as error:  # some networks are built for one size
        new_input, old_input = context.input, old.input
        raise UserError(
            f"warm_start: the old model's weights are for images of {old_input.height}x"
            f"{old_input.width} with {old_input.channels} channels and do not fit a "
            f"{context.recipe.architecture} for {new_input.height}x{new_input.width} with "
            f"{new_input.channels}; leave size and channels out, or warm_start"
        ) from error


def _save_models(context: RunContext, options: TrainOptions) -> None:
    """Write the folder of the best state, if there is one, then that of the last state."""
    path = find_checkpoint(context.out)
    assert path is not None
    rows = read_checkpoint_values(path)["metrics"]
    write_metrics(context.out, rows)  # a kill may have come before those of the last epoch
    best = best_checkpoint(context, rows)
    if best is not None:
        assert context.validation is not None
        choice = choice_on(BEST_EPOCH, context.validation.pixels.images)
        model = _measured_model(context, best, options).with_choice(choice)
        save_model(model, context.out / BEST_MODEL)
    save_model(_measured_model(context, path, options), context.out)
    note_result(context, rows)


def _measured_model(context: RunContext, path: Path, options: TrainOptions) -> Model:
    """Return the model of a checkpoint, with its score scale if it is made compatible."""
    model = finished_model(context, path)
    if options.old is None or not find_method(context.run.method).needs_old_model:
        return model
    set_aside = None if context.validation is None else context.validation.pixels
    return with_score_scale(model, options.old, context.pixels, set_aside=set_aside)


def finished_model(context: RunContext, path: Path) -> Model:
    """Return the model of a checkpoint, with everything that is known of its training."""
    run, images = context.run, context.pixels.images
    checkpoint = read_checkpoint(path)
    unreadable = context.pixels.unreadable
    if context.validation is not None:
        unreadable += context.validation.pixels.unreadable
    architecture = context.architecture
    network = build_without_weights(architecture, context.input, run.dim)
    if run.projected_dim is not None:
        add_projection(network, run.dim, run.projected_dim)
    averaged = bool(context.recipe.average)
    weights = tensors_under("average." if averaged else "network.", checkpoint.tensors)
    network.load_state_dict(weights)
    return Model(
        network=network.to(context.device).eval(),
        architecture=architecture.name,
        input=context.input,
        dim=run.dim,
        class_names=images.class_names,
        class_weights=checkpoint.class_tensors["class_average" if averaged else "class_weights"],
        training=context.description
        | {
            "data": images.name,
            "unreadable_images": list(unreadable),
            "torch": torch.__version__,
        }
        | validation_record(context, checkpoint.state["metrics"]),
        old_fingerprint=run.old_fingerprint,
        class_source=images.class_source,
        further_classes=context.first_classes,
        architecture_config=architecture.config,
    )


# Train a model, on its own or compatible with an old one: the public function.


def train(
    images: ImageSet,
    recipe: Recipe | None,
    out: str | Path,
    *,
    old: Embedder | None = None,
    method: str | None = None,
    resume: bool = False,
    cache: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    checkpoint_every: int | None = None,
    tensorboard: Path | None = None,
    tracker: Tracker | None = None,
    validation: float | None = None,
    label: str = "training",
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
        method: as for ``find_method``; by default ``unibct-plus`` with ``old``, else ``none``.
        resume: continue the same run from the checkpoint in ``out``, if there is one; to the bit
            with the same number of processes, otherwise to rounding.
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

    Returns:
        The last epoch's model. With several processes only the first one's has class weights.
    """
    _require_opened(images=images, recipe=recipe, old=old)
    if workers is not None and workers < 0:
        raise UserError(f"workers must not be negative, not {workers}")
    options = TrainOptions(
        old=old, method=method, resume=resume, cache=cache, device=device,
        workers=workers, checkpoint_every=checkpoint_every, tensorboard=tensorboard,
        tracker=tracker, validation=validation, label=label)  # fmt: skip
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
