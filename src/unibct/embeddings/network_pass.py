"""One batch of pixels through a model, as all ways of embedding a set do it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels
from unibct.errors import UserError
from unibct.models.embedder import ImageEmbedder

NETWORK_BATCH = 256  # images that go through the network at a time
EMBEDDING_WEIGHT = 1 / 3  # of the time of a training step: forward only


def finite_embeddings(
    model: ImageEmbedder, pixels: Pixels, image_ids: Sequence[str]
) -> NDArray[np.float32]:
    """Return (batch, dim) embeddings; an error names the first with NaN, infinity or zeros only."""
    vectors = model.embed_pixels(pixels)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        bad_id = image_ids[int(finite.argmin())]
        raise UserError(f"the model gives no finite embedding for {bad_id}")
    is_zero = ~vectors.any(axis=1)
    if is_zero.any():
        bad_id = image_ids[int(is_zero.argmax())]
        raise UserError(f"the model gives a vector of zeros for {bad_id}")
    return vectors
