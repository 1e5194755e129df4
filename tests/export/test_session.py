import numpy as np
import pytest

from tests.models.cases import small_model
from unibct.export.session import ExportedModel


@pytest.mark.xdist_group("export")
def test_batches_are_put_together_in_order(small_file):
    pixels = np.random.default_rng(0).integers(0, 256, (130, 32, 32, 1)).astype(np.uint8)
    exported = ExportedModel(small_file)
    assert np.allclose(exported.embed_pixels(pixels), small_model().embed_pixels(pixels), atol=1e-5)
    mirrored = exported.embed_pixels(pixels[:, :, ::-1])  # a view
    assert np.allclose(mirrored, small_model().embed_pixels(pixels[:, :, ::-1]), atol=1e-5)
