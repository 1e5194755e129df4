import numpy as np
import pytest

from unibct.embeddings.network_pass import finite_embeddings
from unibct.errors import UserError


class Diverged:
    """A model whose second embedding is not finite."""

    def embed_pixels(self, pixels):
        vectors = np.ones((len(pixels), 3), dtype=np.float32)
        vectors[1:2, 0] = np.nan
        return vectors


def test_the_image_without_a_finite_embedding_is_named():
    pixels = np.zeros((3, 4, 4, 1), dtype=np.uint8)
    with pytest.raises(UserError, match="no finite embedding for second"):
        finite_embeddings(Diverged(), pixels, ("first", "second", "third"))
    assert finite_embeddings(Diverged(), pixels[:1], ("first",)).shape == (1, 3)
