import re

import numpy as np
import pytest

from unibct.embedders.black_box import BlackBox
from unibct.embeddings.extraction import embed_images
from unibct.errors import UserError
from unibct.models.input import InputSpec


class Sides(BlackBox):
    """Looks at the left and the right column only."""

    name, dim, fingerprint, input = "sides", 2, "x", InputSpec(2, 3, 1)

    def outputs(self, pixels):
        return pixels[:, 0, [0, -1], 0].astype(np.float32)


PIXELS = np.array([[[3, 0, 4]] * 2], dtype=np.uint8)[..., None]


def test_vectors_are_normalised_and_views_are_summed():
    box = Sides()
    assert np.allclose(box.embed_pixels(PIXELS), [[0.6, 0.8]])
    assert box.raw_embeddings(PIXELS).tolist() == [[7, 7]]
    assert box.raw_embeddings(PIXELS, flip_test=False).tolist() == [[3, 4]]
    assert box.to("cpu") is box


def test_a_vector_of_zeros_is_named_by_its_image(glyph_classes):
    images = glyph_classes.select(range(3))
    box = Sides()
    box.outputs = lambda pixels: np.zeros((len(pixels), 2), dtype=np.float32)
    with pytest.raises(UserError, match=re.escape(f"zeros for {images.ids[0]}")):
        embed_images(box, images)
