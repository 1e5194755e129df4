"""Train a model, on its own or compatible with an old one: from the first check to its folder."""

import hashlib
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from unibct import progress
from unibct.data.image_set import require_outside
from unibct.data.loader import pixel_memory, read_pixels
from unibct.data.training_classes import BEST_EPOCH, choice_on
from unibct.distributed.device import callers_generators_kept, pick_device
from unibct.distributed.ranks import Ranks, current_ranks
from unibct.errors import UserError
from unibct.models.architectures import RANDOM, build_without_weights
from unibct.models.architectures.growth import grown_state
from unibct.models.model import Model
from unibct.models.model_folder import load_model, save_model, tensors_under
from unibct.models.old_space import add_projection, without_projection
from unibct.training.default_recipe import fitted_recipe, recipe_for, unused_settings
from unibct.training.loop import TrainingLoop, restore_shared_warmup
from unibct.training.network import slow_precision_note
from unibct.training.options import TrainOptions, takes_fields_of
from unibct.training.plan import (
    VERSION,
    Run,
    RunContext,
    length_note,
    plan_run,
    require_same_run,
    unknown_identities,
)
from unibct.training.run_folder import (
    BEST_MODEL,
    Checkpoint,
    EarlierRun,
    find_checkpoint,
    find_earlier_run,
    read_checkpoint,
    read_checkpoint_values,
    remove_failed_run,
    remove_unfinished_files,
    remove_working_files,
    run_lock,
    stored_description,
    write_metrics,
)
from unibct.training.set_aside import UNLEARNT
from unibct.training.state import TrainingState, copy_known_classes, initial_state, restore_state
from unibct.training.tracking import TensorBoard, Tracker, require_tensorboard
from unibct.training.training_set_embeddings import make_method
from unibct.training.validation import (
    best_checkpoint,
    keep_best,
    note_result,
    note_start,
    validation_record,
    with_score_scale,
)


@takes_fields_of(TrainOptions)
def train(options: TrainOptions) -> Model:
    """Train a model and write its folder; return the last epoch's model.

    Under ``torchrun`` each process calls this and takes its part of every batch and of the
    classes; ``out`` must then be on a file system that all processes share, and only the first
    one's model has class weights.
    """
    images, out, ranks = options.images, Path(options.out), current_ranks()
    require_outside(images, out)
    given = options.recipe or recipe_for(images)
    recipe = fitted_recipe(given, images)
    unused = unused_settings(given, recipe)
    if unused is not None:
        progress.note(unused)
    # Refuse what cannot work, before anything is read or written.
    share, draws_from_all = ranks.ask_first(lambda: _stored_validation(out, options))
    run = plan_run(
        images,
        recipe,
        old=options.old,
        method=options.method,
        validation=share,
        draws_from_all=draws_from_all,
    )
    require_enough_for_all(run, ranks)
    device = pick_device(options.device)
    if options.tensorboard is not None:
        require_tensorboard()
    if ranks.world > 1:
        shared = (options.resume, images.skip_bad, options.checkpoint_every, pixel_memory())
        require_started_alike(ranks, repr((run.digest, *shared)), device)
    earlier = find_earlier_run(out, resume=options.resume, ranks=ranks)
    # A finished model is only read.
    with nullcontext() if earlier.finished else run_lock(out, ranks):
        # Another run may have worked here until the lock was free.
        earlier = find_earlier_run(out, resume=options.resume, ranks=ranks)
        context = _read_images(run, device, ranks, options)
        if earlier.finished:
            return _load_finished(context)
        remove_unfinished_files(out, ranks)
        checkpoint = _own_checkpoint(context, earlier)
        ranks.barrier()  # no rank writes before all have checked the folder
        try:
            _train_epochs(context, checkpoint)
            if ranks.first:
                _save_models(context)
        except UserError:
            remove_failed_run(out, ranks)
            raise
        ranks.barrier()
        remove_working_files(out, ranks)
        return load_model(out, device=device, with_classifier=ranks.first)


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
    """Refuse processes with different options, as text: they would wait for each other forever."""
    own_digest = int(hashlib.sha256(options.encode()).hexdigest()[:15], 16)
    first_digest = ranks.broadcast_numbers(own_digest)[0]
    if ranks.any(first_digest != own_digest, device):
        raise UserError(
            "the processes were not started alike: give each the same command, data and "
            "environment, on every machine"
        )


def _read_images(run: Run, device: torch.device, ranks: Ranks, options: TrainOptions) -> RunContext:
    """Read the images; some may be left out, so check again."""
    frame = run.input.frame
    pixels, validation = read_pixels(run.images, frame, ranks=ranks), None
    if run.sets.validation is not None:
        validation = read_pixels(run.sets.validation, frame, ranks=ranks)
    run = run.of(pixels.images)
    require_enough_for_all(run, ranks)
    for note in (
        length_note(run.given, run.recipe, len(run.images)),
        slow_precision_note(run.recipe.precision, device),
    ):
        if note is not None:
            progress.note(note)
    return RunContext(run, pixels, device, ranks, options, validation)


def _load_finished(context: RunContext) -> Model:
    """Load the model of an earlier run that has finished, and report its work as done."""
    model = load_model(context.out, device=context.device, with_classifier=context.ranks.first)
    require_same_run(model.training, context.description, context.out)
    remove_working_files(context.out, context.ranks)
    progress.note(f"{context.out}: already trained")
    work = context.images_per_epoch * context.recipe.epochs
    with progress.task(context.options.label, work, done=work):
        return model


def _own_checkpoint(context: RunContext, earlier: EarlierRun) -> Checkpoint | None:
    """Read the checkpoint of the earlier run, if it is the same run."""
    if earlier.checkpoint is None:
        return None
    # Another run may have other classes, so its rows cannot be read as this one's.
    stored = read_checkpoint_values(earlier.checkpoint)["described"]
    require_same_run(stored, context.description, context.out)
    before, now = stored.get(VERSION), context.description[VERSION]
    if before != now:
        progress.note(f"{context.out} was begun with unibct {before} and goes on with {now}")
    return read_checkpoint(earlier.checkpoint, context.own_classes)


def _train_epochs(context: RunContext, checkpoint: Checkpoint | None) -> None:
    """Train from the checkpoint, from a shared warm-up or from the start, to the last epoch."""
    note_start(context)
    state, options = _first_state(context), context.options
    if checkpoint is not None:
        restore_state(context, state, checkpoint)
        keep_best(context, state)
    else:
        restore_shared_warmup(context, state)
    with ExitStack() as stack:
        trackers: list[Tracker] = []
        if options.tracker is not None and context.ranks.first:
            trackers.append(options.tracker)
        if options.tensorboard is not None and context.ranks.first:
            board = TensorBoard(options.tensorboard, state.steps_done(context))
            stack.callback(board.close)
            trackers.append(board)
        stack.enter_context(callers_generators_kept())  # networks may draw random numbers
        TrainingLoop(context, state, trackers).run()


def _first_state(context: RunContext) -> TrainingState:
    """Build the state before the first step: from the seed, or from the old model's weights."""
    state, old = initial_state(context), context.run.old
    if old is None:
        return state
    if context.recipe.warm_start:
        assert isinstance(old, Model)  # plan_run has checked it
        _load_old_weights(context, state, old)
        identities, own_classes = context.images.class_identities, context.own_classes
        copy_known_classes(state.class_weights, identities, own_classes, old, context.ranks)
        weights = context.recipe.weights
        if weights not in (None, RANDOM):
            progress.note(f"warm_start: from the old model's weights, not from {weights}")
        unknown = unknown_identities(old, context.images)
        if unknown is not None:
            progress.note(f"no class weights are taken from the old model: {unknown}")
    state.use_method(make_method(context, old))
    return state


def _load_old_weights(context: RunContext, state: TrainingState, old: Model) -> None:
    """Take the old model's weights; a larger network grows from them."""
    weights = without_projection(old.network.state_dict())
    if context.run.architecture.name != old.architecture:
        weights = grown_state(weights, state.network, seed=context.run.seed)
    try:
        state.network.load_state_dict(weights)
    except RuntimeError as error:  # some networks are built for one size
        new_input, old_input = context.run.input, old.input
        raise UserError(
            f"warm_start: the old model's weights are for images of {old_input.height}x"
            f"{old_input.width} with {old_input.channels} channels and do not fit a "
            f"{context.recipe.architecture} for {new_input.height}x{new_input.width} with "
            f"{new_input.channels}; leave size and channels out, or warm_start"
        ) from error


def _save_models(context: RunContext) -> None:
    """Write the folder of the best state, if there is one, then that of the last state."""
    path = find_checkpoint(context.out)
    assert path is not None
    rows = read_checkpoint_values(path)["metrics"]
    write_metrics(context.out, rows)  # a kill may have come before those of the last epoch
    best = best_checkpoint(context, rows)
    if best is not None:
        assert context.validation is not None
        choice = choice_on(BEST_EPOCH, context.validation.images)
        save_model(_measured_model(context, best).with_choice(choice), context.out / BEST_MODEL)
    save_model(_measured_model(context, path), context.out)
    note_result(context, rows)


def _measured_model(context: RunContext, path: Path) -> Model:
    """Return the model of a checkpoint, with its score scale if it is made compatible."""
    model, old = finished_model(context, path), context.run.old
    if old is None or not context.run.entry.needs_old_model:
        return model
    return with_score_scale(model, old, context.pixels, set_aside=context.validation)


def finished_model(context: RunContext, path: Path) -> Model:
    """Return the model of a checkpoint, with everything that is known of its training."""
    run, images = context.run, context.images
    checkpoint = read_checkpoint(path)
    read = [part for part in (context.pixels, context.validation) if part is not None]
    architecture = context.run.architecture
    network = build_without_weights(architecture, context.run.input, run.dim)
    if run.projected_dim is not None:
        add_projection(network, run.dim, run.projected_dim)
    network.load_state_dict(tensors_under("network.", checkpoint.tensors))
    return Model(
        network=network.to(context.device).eval(),
        architecture=architecture.name,
        input=context.run.input,
        dim=run.dim,
        class_names=images.class_names,
        class_weights=checkpoint.class_tensors["class_weights"],
        training=context.description
        | {
            "data": images.name,
            "unreadable_images": [image_id for part in read for image_id in part.unreadable],
            "torch": torch.__version__,
        }
        | validation_record(context, checkpoint.state["metrics"]),
        old_fingerprint=run.old_fingerprint,
        class_source=images.class_source,
        further_classes=run.first_classes,
        architecture_config=architecture.config,
    )
