"""Recall@1 on the classes that a run sets aside, after each epoch and at the end.

Which classes these are is decided in ``set_aside.py``.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.arrays import Floats, Ints
from unibct.data.loader import PixelBatches
from unibct.data.training_classes import SCORE_SCALE_MEASURED, Choice, choice_on
from unibct.embeddings.extraction import NETWORK_BATCH, embed_images, finite_embeddings
from unibct.embeddings.recall import Strength, pixel_vectors, recall_at_1
from unibct.embeddings.score_scale import NoScoreScaleError, sample_rows, score_scale
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.files import sync
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.models.old_space import OldSpaceModel, old_space_dim
from unibct.training.checkpoints import checkpoint_folder
from unibct.training.context import RunContext
from unibct.training.plan import classes_not_learnt
from unibct.training.state import TrainingState, current_model, share_buffers

RECALL = "recall_at_1"  # columns of metrics.csv
PIXEL_RECALL = "pixel_recall_at_1"


def validated(context: RunContext, state: TrainingState) -> dict[str, float]:
    """Return the recall@1 of the network as it is now and of raw pixels; empty if it is off.

    Every rank calls this and embeds its part of the validation images. The raw pixels are compared
    in the first epoch only.
    """
    if context.validation is None:
        return {}
    labels = context.validation.pixels.images.labels
    vectors = _embedded(context, state)
    recall = context.ranks.ask_first(lambda: recall_at_1(vectors, labels))
    if state.metrics:
        return {RECALL: recall, PIXEL_RECALL: state.metrics[-1][PIXEL_RECALL]}
    pixels = context.ranks.ask_first(lambda: _pixel_recall(context))
    return {RECALL: recall, PIXEL_RECALL: pixels}


def row_strength(context: RunContext, row: dict[str, Any]) -> Strength:
    """Return what a row of ``metrics.csv`` says about its epoch."""
    assert context.validation is not None
    has_vectors = context.validation.pixels.images.vector_dim is not None
    pixels = "the given vectors" if has_vectors else "raw pixels"
    return Strength(row[RECALL], row[PIXEL_RECALL], pixels)


def best_row(context: RunContext, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the best epoch so far, the first of several; None if there is none yet.

    Epochs before the compatibility loss begins do not count: their model is not compatible.
    """
    counted = [row for row in rows if row["epoch"] >= context.run.first_usable_epoch]
    if context.validation is None or not counted:
        return None
    return max(counted, key=lambda row: row[RECALL])


def validation_record(context: RunContext, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what ``model.json`` says about the results: of this state, and of the best one."""
    best = best_row(context, rows)
    if best is None:
        return {}
    last = rows[-1]
    return {
        "validated": {"epoch": last["epoch"], **row_strength(context, last).as_json()}
        | {"best_epoch": best["epoch"], "best_recall_at_1": best[RECALL]}
    }


def note_start(context: RunContext) -> None:
    """Say how many classes were set aside, how to train on all, and whether they are new."""
    if context.validation is not None:
        source = context.validation.source
        doubt = (
            "; the weights or vectors from which the run starts may have learnt them: recall@1 on "
            "new classes is lower"
        )
        progress.note(
            f"{source.classes:,} of {source.classes + len(context.class_names):,} classes "
            f"({source.images:,} images) are set aside to measure recall@1; --validation 0 trains "
            f"on all{doubt if source.unlearnt is False else ''}"
        )


def note_epoch(context: RunContext, row: dict[str, Any]) -> None:
    """Report the epoch that has just ended."""
    if context.validation is not None:
        loss = row["loss_cls"] + row["eta"] * row["loss_comp"]
        place = f"epoch {row['epoch'] + 1} of {context.recipe.epochs}"
        progress.note(f"{place}: loss {loss:.3f}, {row_strength(context, row)}")


def note_result(context: RunContext, rows: Sequence[dict[str, Any]]) -> None:
    """Report the best and the last epoch, and say so if the model is hardly better than pixels."""
    best = best_row(context, rows)
    if best is None or context.validation is None:
        return
    classes = len(context.validation.pixels.images.class_names)
    strength = row_strength(context, best)
    if best["epoch"] == rows[-1]["epoch"]:
        last = "the last one"
    else:
        last = f"the last one has {100 * rows[-1][RECALL]:.1f} %"
    progress.note(
        f"best epoch: {best['epoch'] + 1} ({last}), {strength} on {classes} classes that were set "
        "aside"
    )
    if strength.too_weak:
        progress.note(
            f"this model is hardly better than {strength.pixels}: train it for more epochs, or "
            "with more images, or with another recipe, before anything is built on it"
        )


def _embedded(context: RunContext, state: TrainingState) -> NDArray[np.float32]:
    """Return (images, dim) of the network as it is now; each rank embeds its share."""
    assert context.validation is not None
    share_buffers(context, state)  # as in the checkpoint that follows
    pixels, model = context.validation.pixels, current_model(context, state)
    own_rows = context.ranks.share(len(pixels.images))
    vectors = np.zeros((len(pixels.images), model.dim), dtype=np.float32)
    done = own_rows.start
    for batch in pixels.batches(np.arange(own_rows.start, own_rows.stop), NETWORK_BATCH):
        vectors[done : done + len(batch)] = model.embed_pixels(batch)
        done += len(batch)
    return context.ranks.summed_array(vectors)


def _pixel_recall(context: RunContext) -> float:
    assert context.validation is not None
    pixels = context.validation.pixels
    rows = np.arange(len(pixels.images))
    as_vectors = pixel_vectors
    if pixels.images.vector_dim is not None:  # finished vectors are compared as they are
        as_vectors = _flat
    vectors = [as_vectors(batch) for batch in pixels.batches(rows, NETWORK_BATCH)]
    return recall_at_1(np.concatenate(vectors), pixels.images.labels)


def _flat(rows: NDArray[Any]) -> NDArray[np.float32]:
    return rows.reshape(len(rows), -1).astype(np.float32)


# The best state of a run, kept beside its checkpoint until the model is finished.
#
# After an epoch with the best recall@1 so far, ``.best-EPOCH`` is a copy of the checkpoint that the
# epoch ended with. It is made after that checkpoint, whose metrics say which epoch is the best, so
# that a run which was killed in between makes it when it continues.

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


# Measure a finished model's score scale, on classes that it was not trained on if there are any.
#
# A model pulls the classes of its training apart, more than others. So on training images new
# scores of different classes spread less than on tomorrow's, and the scale comes out too large.
# The same holds for the old model: its scores are measured on classes that it has not learnt
# either, if there are enough. What was measured on is kept with the scale, and said if it is
# anything else.

_CLASSES_NEEDED = 10  # with fewer, others give a better estimate
NEW_TO_BOTH = "classes that neither model was trained on"
SET_ASIDE = "classes that were set aside, of which a model has learnt some, or may have"
TRAINED_ON = "images that the new model was trained on"


def with_score_scale(
    model: Model, old: Embedder, pixels: PixelBatches, *, set_aside: PixelBatches | None = None
) -> Model:
    """Return a finished model with its score scale, measured on a sample of images.

    The same models and images give the same scale. If it cannot be measured, a note says why.
    Images of other classes than the training classes are kept as what it was measured on.

    Args:
        model: the new model.
        old: the old model.
        pixels: the training images.
        set_aside: images of other classes, if some were set aside. They are used if they are
            enough, and if the old model knows them: those that no model has learnt, if they are
            enough.
    """
    try:
        scale, measured_on, choice = _scale_on_either(model, old, pixels, set_aside)
    except UserError as error:
        progress.note(f"the score scale is unknown: {error}")
        return model.with_score_scale(None)
    if measured_on != NEW_TO_BOTH:
        progress.note(
            f"the score scale was measured on {measured_on}: on other classes it may be wrong, so "
            "look at the FAR that an evaluation shows for it"
        )
    return model.with_score_scale(scale, measured_on, choice)


def _scale_on_either(
    model: Model, old: Embedder, pixels: PixelBatches, set_aside: PixelBatches | None
) -> tuple[float, str, Choice | None]:
    """Return the score scale on the images that were set aside, or else on the training images."""
    if set_aside is not None and len(set_aside.images.class_names) >= _CLASSES_NEEDED:
        images, measured_on = set_aside.images, SET_ASIDE
        rows = np.arange(len(images))
        learnt = old.training_classes | model.training_classes
        classes = classes_not_learnt(images, np.unique(images.labels), learnt)
        if len(classes) >= _CLASSES_NEEDED:
            rows, measured_on = np.flatnonzero(np.isin(images.labels, classes)), NEW_TO_BOTH
        try:
            scale = _measured_scale(model, old, set_aside, rows)
            return scale, measured_on, choice_on(SCORE_SCALE_MEASURED, images.select(rows))
        except NoScoreScaleError:
            raise  # a scale of the training images would be wrong for other classes
        except UserError:
            pass  # the old model may be stored embeddings of the training images
    return _measured_scale(model, old, pixels, np.arange(len(pixels.images))), TRAINED_ON, None


def _measured_scale(model: Model, old: Embedder, pixels: PixelBatches, usable: Ints) -> float:
    """Return the score scale on a sample of usable rows, or raise an error that says why not."""
    rows = usable[sample_rows(len(usable))]
    new: ImageEmbedder = model if old_space_dim(model) is None else OldSpaceModel(model)
    old_vectors = _vectors(_on_device(old, model), pixels, rows)
    new_vectors = _vectors(new, pixels, rows)
    return score_scale(new_vectors, old_vectors, pixels.images.labels[rows])


def _on_device(old: Embedder, model: Model) -> Embedder:
    """Return the old model where the new one is, if it can be moved."""
    if isinstance(old, StoredEmbeddings):
        return old
    return cast(ImageEmbedder, old).to(model.device)


def _vectors(embedder: Embedder, pixels: PixelBatches, rows: Ints) -> Floats:
    """Return (rows, dim) embeddings of some images; they are read again for another frame."""
    images = pixels.images
    ids = [images.ids[int(row)] for row in rows]
    if isinstance(embedder, StoredEmbeddings):
        embedder.require_all(images.select(rows))
        return embedder.vectors_of(ids)
    embedder = cast(ImageEmbedder, embedder)
    if embedder.input.frame != pixels.frame:
        return np.asarray(embed_images(embedder, images.select(rows)).vectors)
    vectors = np.empty((len(rows), embedder.dim), dtype=np.float32)
    done = 0
    for batch in pixels.batches(rows, NETWORK_BATCH):
        part = slice(done, done + len(batch))
        vectors[part] = finite_embeddings(embedder, batch, ids[part])
        done += len(batch)
    return vectors
