import numpy as np
import pytest

from unibct.embeddings.strength import Strength, model_strength, pixel_vectors


def test_a_model_must_go_a_tenth_of_the_way_from_raw_pixels_to_perfect():
    assert Strength(0.279, 0.2).too_weak
    assert not Strength(0.281, 0.2).too_weak
    assert Strength(0.1, 0.2).too_weak
    assert not Strength(1.0, 1.0).too_weak
    assert Strength(0.3, 0.25).as_json() == {
        "recall_at_1": 0.3,
        "pixel_recall_at_1": 0.25,
        "too_weak": True,
    }
    assert str(Strength(0.3, 0.25)) == "recall@1 30.0 % (raw pixels 25.0 %)"


def test_pixel_vectors_shrink_by_averaging_and_have_no_mean():
    rng = np.random.default_rng(0)
    large = rng.integers(256, size=(3, 64, 96, 3), dtype=np.uint8)
    means = large.reshape(3, 32, 2, 32, 3, 3).mean(axis=(2, 4))  # blocks of 2×3 pixels
    expected = means.transpose(0, 3, 1, 2).reshape(3, -1)
    expected -= expected.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(pixel_vectors(large), expected, atol=1e-3)
    small = rng.integers(256, size=(2, 8, 5), dtype=np.uint8)
    assert pixel_vectors(small).shape == (2, 40)


def test_brightness_does_not_change_what_is_near():
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    vectors = pixel_vectors(np.concatenate([image, image + 100, 63 - image]))
    np.testing.assert_allclose(np.corrcoef(vectors)[0], [1, 1, -1], atol=1e-6)


def test_a_model_is_measured_on_the_images_whose_pixels_are_read():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 5)
    pixels = rng.integers(256, size=(100, 6, 6), dtype=np.uint8)
    strength = model_strength(np.eye(20)[labels], labels, pixels.__getitem__)
    assert strength is not None
    assert strength.recall_at_1 == 1.0
    assert strength.pixel_recall_at_1 == pytest.approx(0.05, abs=0.06)
    assert model_strength(np.eye(3), np.arange(3), pixels.__getitem__) is None
