"""Vectors of rows that are there, made once more: by another model, from the same images."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unibct.gallery.adding import image_digests, require_same_images, require_usable
from unibct.gallery.rows import Metadata
from unibct.gallery.sources import Source
from unibct.models.embedder import Embedder
from unibct.progress import Silent


def vectors_again(
    source: Source, stored: Mapping[str, Metadata], model: Embedder | None, *, skip_bad: bool
) -> tuple[Source, NDArray[np.float32]]:
    """Return the rows that can be made again, and their vectors: (rows, dim).

    Images that are not those that were added are refused.

    Args:
        source: images or embeddings of the rows.
        stored: id -> metadata of the row.
        model: embeds the images; None if there are embeddings.
        skip_bad: leave rows out whose images cannot be read, instead of refusing.
    """
    vectors = None
    if skip_bad and source.images is not None:
        assert model is not None
        source, vectors = source.readable_vectors(model, Silent())
    metadata = [stored[row_id] for row_id in source.ids]
    require_same_images(source, image_digests(source.images), metadata)
    if vectors is None:
        vectors = source.vectors(model, Silent())
    require_usable(vectors, source)
    return source, vectors
