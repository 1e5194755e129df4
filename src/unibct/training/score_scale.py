"""Measure a finished model's score scale on its training images."""

from typing import cast

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.data.loader import PixelBatches
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.network_pass import NETWORK_BATCH, finite_embeddings
from unibct.embeddings.score_scale import sample_rows, score_scale
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.models.old_space import OldSpaceModel, old_space_dim
from unibct.progress import Progress, Silent


def with_score_scale(
    model: Model, old: Embedder, pixels: PixelBatches, progress: Progress | None = None
) -> Model:
    """Return a finished model with its score scale, measured on a sample of its training images.

    The same models and images give the same scale. If it cannot be measured, a note says why.

    Args:
        model: the new model.
        old: the old model.
        pixels: the training images.
        progress: gets the note.
    """
    rows = sample_rows(len(pixels.images))
    new: ImageEmbedder = model if old_space_dim(model) is None else OldSpaceModel(model)
    try:
        old_vectors = _vectors(_on_device(old, model), pixels, rows)
        new_vectors = _vectors(new, pixels, rows)
        scale = score_scale(new_vectors, old_vectors, pixels.images.labels[rows])
    except UserError as error:
        (progress or Silent()).note(f"the score scale is unknown: {error}")
        return model.with_score_scale(None)
    return model.with_score_scale(scale)


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
