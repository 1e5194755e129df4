"""What a run measures beside its loss: recall@1 on the classes set aside, and the score scale."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.arrays import Floats, Ints
from unibct.data.loader import PixelBatches
from unibct.data.training_classes import SCORE_SCALE_MEASURED, Choice, choice_on
from unibct.embeddings.extraction import NETWORK_BATCH, embed, finite_embeddings
from unibct.embeddings.recall import ModelRecall, pixel_vectors, recall_at_1
from unibct.embeddings.score_scale import NoScoreScaleError, sample_rows, score_scale
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.models.old_space import OldSpaceModel, old_space_dim
from unibct.training.plan import RunContext
from unibct.training.run_folder import best_folder, keep_best_state
from unibct.training.set_aside import classes_not_learnt
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
    pixels, ranks = context.validation, context.ranks
    labels = pixels.images.labels
    share_buffers(context, state)  # as in the checkpoint that follows
    model, own_rows = current_model(context, state), ranks.share(len(labels))
    vectors = np.zeros((len(labels), model.dim), dtype=np.float32)
    done = own_rows.start
    for batch in pixels.batches(np.arange(own_rows.start, own_rows.stop), NETWORK_BATCH):
        vectors[done : done + len(batch)] = model.embed_pixels(batch)
        done += len(batch)
    vectors = ranks.summed_array(vectors)
    recall = ranks.ask_first(lambda: recall_at_1(vectors, labels))
    if state.metrics:
        return {RECALL: recall, PIXEL_RECALL: state.metrics[-1][PIXEL_RECALL]}
    return {RECALL: recall, PIXEL_RECALL: ranks.ask_first(lambda: _pixel_recall(pixels))}


def _pixel_recall(pixels: PixelBatches) -> float:
    """Return the recall@1 of raw pixels; finished vectors are compared as they are."""
    as_vectors = pixel_vectors if pixels.images.vector_dim is None else _flat
    rows = np.arange(len(pixels.images))
    vectors = [as_vectors(batch) for batch in pixels.batches(rows, NETWORK_BATCH)]
    return recall_at_1(np.concatenate(vectors), pixels.images.labels)


def _flat(rows: NDArray[Any]) -> NDArray[np.float32]:
    return rows.reshape(len(rows), -1).astype(np.float32)


def row_recall(context: RunContext, row: dict[str, Any]) -> ModelRecall:
    """Return what a row of ``metrics.csv`` says about its epoch."""
    assert context.validation is not None
    has_vectors = context.validation.images.vector_dim is not None
    pixels = "the given vectors" if has_vectors else "raw pixels"
    return ModelRecall(row[RECALL], row[PIXEL_RECALL], pixels)


def note_start(context: RunContext) -> None:
    """Say how many classes were set aside, how to train on all, and whether they are new."""
    if context.validation is None:
        return
    source = context.run.sets
    doubt = (
        "; the weights or vectors from which the run starts may have learnt them: recall@1 on "
        "new classes is lower"
    )
    progress.note(
        f"{source.classes:,} of {source.classes + len(context.images.class_names):,} classes "
        f"({source.images:,} images) are set aside to measure recall@1; validation=0 trains "
        f"on all{doubt if source.unlearnt is False else ''}"
    )


def note_epoch(context: RunContext, row: dict[str, Any]) -> None:
    """Report the epoch that has just ended."""
    if context.validation is not None:
        loss = row["loss_cls"] + row["eta"] * row["loss_comp"]
        place = f"epoch {row['epoch'] + 1} of {context.recipe.epochs}"
        progress.note(f"{place}: loss {loss:.3f}, {row_recall(context, row)}")


# The best epoch. Its checkpoint is kept after the checkpoint that the epoch ended with, whose
# metrics say which epoch is the best; so a run that was killed in between keeps it when it goes on.


def best_row(context: RunContext, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the best epoch so far, the first of several; None if there is none yet.

    Epochs before the compatibility loss begins do not count: their model is not compatible.
    """
    counted = [row for row in rows if row["epoch"] >= context.run.first_usable_epoch]
    if context.validation is None or not counted:
        return None
    return max(counted, key=lambda row: row[RECALL])


def keep_best(context: RunContext, state: TrainingState) -> None:
    """Keep the checkpoint of the epoch that has just ended, if it is the best one."""
    best = best_row(context, state.metrics)
    just_ended = best is not None and state.step == 0 and best["epoch"] == state.epoch - 1
    if just_ended and context.ranks.first:
        keep_best_state(context.out, state.epoch - 1)


def best_checkpoint(context: RunContext, rows: Sequence[dict[str, Any]]) -> Path | None:
    """Return the folder of the best state, if the run has one."""
    best = best_row(context, rows)
    return None if best is None else best_folder(context.out, best["epoch"])


def validation_record(context: RunContext, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what ``model.json`` says about the results: of this state, and of the best one."""
    best = best_row(context, rows)
    if best is None:
        return {}
    last = rows[-1]
    return {
        "validated": {"epoch": last["epoch"], **row_recall(context, last).as_json()}
        | {"best_epoch": best["epoch"], "best_recall_at_1": best[RECALL]}
    }


def note_result(context: RunContext, rows: Sequence[dict[str, Any]]) -> None:
    """Report the best and the last epoch, and say so if the model is hardly better than pixels."""
    best = best_row(context, rows)
    if best is None or context.validation is None:
        return
    classes = len(context.validation.images.class_names)
    strength, is_last = row_recall(context, best), best["epoch"] == rows[-1]["epoch"]
    last = "the last one" if is_last else f"the last one has {100 * rows[-1][RECALL]:.1f} %"
    progress.note(
        f"best epoch: {best['epoch'] + 1} ({last}), {strength} on {classes} classes that were set "
        "aside"
    )
    if strength.too_weak:
        progress.note(
            f"this model is hardly better than {strength.pixels}: train it for more epochs, or "
            "with more images, or with another recipe, before anything is built on it"
        )


# The score scale of a finished model, on classes that it was not trained on if there are any.
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
    model: Model,
    old: Embedder,
    pixels: PixelBatches,
    *,
    set_aside: PixelBatches | None = None,
) -> Model:
    """Return a finished model with its score scale, measured on a sample of images.

    The same models and images give the same scale. If it cannot be measured, a note says why.
    ``pixels`` are the training images. Those of classes that were ``set_aside`` are used if they
    are enough, and if the old model knows them: those that no model has learnt, if they are
    enough. They are kept as what it was measured on.
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
    if not isinstance(old, StoredEmbeddings):  # it can be moved to where the new one is
        old = cast(ImageEmbedder, old).to(model.device)
    old_vectors, new_vectors = _vectors(old, pixels, rows), _vectors(new, pixels, rows)
    return score_scale(new_vectors, old_vectors, pixels.images.labels[rows])


def _vectors(embedder: Embedder, pixels: PixelBatches, rows: Ints) -> Floats:
    """Return (rows, dim) embeddings of some images; they are read again for another frame."""
    images = pixels.images
    ids = [images.ids[int(row)] for row in rows]
    if isinstance(embedder, StoredEmbeddings):
        embedder.require_all(images.select(rows))
        return embedder.embeddings.vectors_of(ids)
    embedder = cast(ImageEmbedder, embedder)
    if embedder.input.frame != pixels.frame:
        with progress.silenced():
            return np.asarray(embed(embedder, images.select(rows)).vectors)
    vectors = np.empty((len(rows), embedder.dim), dtype=np.float32)
    done = 0
    for batch in pixels.batches(rows, NETWORK_BATCH):
        part = slice(done, done + len(batch))
        vectors[part] = finite_embeddings(embedder, batch, ids[part])
        done += len(batch)
    return vectors
