"""Measure a finished model's score scale, on classes that it was not trained on if there are any.

A model pulls the classes of its training apart, more than others. So on training images new scores
of different classes spread less than on tomorrow's, and the scale comes out too large. The same
holds for the old model: its scores are measured on classes that it has not learnt either, if there
are enough. What was measured on is kept with the scale, and said if it is anything else.
"""

from typing import cast

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.data.choices import SCORE_SCALE_MEASURED, Choice
from unibct.data.loader import PixelBatches
from unibct.data.training_classes import choice_on
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.network_pass import NETWORK_BATCH, finite_embeddings
from unibct.embeddings.score_scale import NoScoreScaleError, sample_rows, score_scale
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.models.old_space import OldSpaceModel, old_space_dim
from unibct.progress import Progress, Silent
from unibct.training.set_aside import classes_not_learnt

_CLASSES_NEEDED = 10  # with fewer, others give a better estimate
NEW_TO_BOTH = "classes that neither model was trained on"
SET_ASIDE = "classes that were set aside, of which a model has learnt some, or may have"
TRAINED_ON = "images that the new model was trained on"


def with_score_scale(
    model: Model,
    old: Embedder,
    pixels: PixelBatches,
    progress: Progress | None = None,
    *,
    set_aside: PixelBatches | None = None,
) -> Model:
    """Return a finished model with its score scale, measured on a sample of images.

    The same models and images give the same scale. If it cannot be measured, a note says why.
    Images of other classes than the training classes are kept as what it was measured on.

    Args:
        model: the new model.
        old: the old model.
        pixels: the training images.
        progress: gets the note.
        set_aside: images of other classes, if some were set aside. They are used if they are
            enough, and if the old model knows them: those that no model has learnt, if they are
            enough.
    """
    progress = progress or Silent()
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
