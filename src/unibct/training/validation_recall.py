"""Recall@1 on the classes that a run sets aside, after each epoch and at the end.

Which classes these are is decided in ``set_aside.py``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.embeddings.network_pass import NETWORK_BATCH
from unibct.embeddings.recall import recall_at_1
from unibct.embeddings.strength import Strength, pixel_vectors
from unibct.progress import Progress
from unibct.training.context import RunContext
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


def note_start(context: RunContext, progress: Progress) -> None:
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


def note_epoch(context: RunContext, row: dict[str, Any], progress: Progress) -> None:
    """Report the epoch that has just ended."""
    if context.validation is not None:
        loss = row["loss_cls"] + row["eta"] * row["loss_comp"]
        place = f"epoch {row['epoch'] + 1} of {context.recipe.epochs}"
        progress.note(f"{place}: loss {loss:.3f}, {row_strength(context, row)}")


def note_result(context: RunContext, rows: Sequence[dict[str, Any]], progress: Progress) -> None:
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
