import numpy as np

from tests.models.cases import small_model
from unibct.export.agreement import (
    LOWEST_COSINE,
    agreement,
    embeddings_in_torch,
    sample_pixels,
)


class Turned:
    """An exported file whose embeddings of some images are turned by an angle."""

    def __init__(self, vectors, angles):
        other = np.roll(vectors, 1, axis=1)
        other -= vectors * (vectors * other).sum(axis=1, keepdims=True)
        other /= np.linalg.norm(other, axis=1, keepdims=True)
        self.vectors = vectors * np.cos(angles)[:, None] + other * np.sin(angles)[:, None]

    def embed_pixels(self, pixels):
        return self.vectors


def test_the_worst_image_decides():
    model = small_model()
    pixels, names = sample_pixels(model, None, 40)
    vectors = embeddings_in_torch(model, pixels).astype(np.float64)
    angles = np.zeros(40)
    assert agreement(model, Turned(vectors, angles), pixels, names).is_enough
    angles[7], angles[9] = 0.1, 0.004
    found = agreement(model, Turned(vectors, angles), pixels, names)
    assert np.isclose(found.lowest, np.cos(0.1), atol=1e-6)
    assert (found.worst, found.images, found.is_enough) == (names[7], 40, False)
    angles[7] = 0
    found = agreement(model, Turned(vectors, angles), pixels, names)
    assert found.is_enough == (np.cos(0.004) >= LOWEST_COSINE)
    broken = Turned(vectors, angles)
    broken.vectors[3] = np.nan
    found = agreement(model, broken, pixels, names)
    assert (found.lowest, found.worst) == (-1.0, names[3])


def test_a_thousand_images_whatever_is_given(glyph_classes):
    model = small_model()
    pixels, names = sample_pixels(model, None)
    assert pixels.shape == (1000, 32, 32, 1)
    assert pixels.dtype == np.uint8
    assert len(set(names)) == 1000
    assert sum(name.startswith("noise") for name in names) == 500
    pixels, names = sample_pixels(model, glyph_classes, 300)
    assert names[: len(glyph_classes)] == glyph_classes.ids
    assert len(pixels) == len(names) == 300
    pixels, names = sample_pixels(model, glyph_classes, 20)
    rows = [glyph_classes.position[name] for name in names]
    assert (rows[0], rows[-1]) == (0, len(glyph_classes) - 1)
    assert np.array_equal(pixels[0, :, :, 0], glyph_classes.read(names[0]))
