import numpy as np
import pytest
import torch

from tests.conftest import TINY
from unibct import train
from unibct.data.augment import augmented, blurred, cropped, mirrored, recoloured
from unibct.data.batches import read_pixels
from unibct.embeddings import embed_pixel_batches
from unibct.methods import Batch, OldKnowledge
from unibct.recipe import load_recipe
from unibct.scenarios import split

RNG = np.random.default_rng


def some_pixels(channels=3, count=200):
    return RNG(0).integers(0, 256, (count, 12, 10, channels), dtype=np.uint8)


def test_nothing_is_changed_unless_asked():
    pixels = some_pixels()
    found, flipped = augmented(pixels, RNG(1))
    assert found is pixels
    assert flipped is None


@pytest.mark.parametrize("channels", [1, 3])
def test_all_changes_together_are_seeded_and_leave_the_input_alone(channels):
    pixels = some_pixels(channels)
    before = pixels.copy()
    options = {"shift": 2, "flip": True, "crop": 0.3, "colour": 0.3, "low_resolution": 0.5}
    found, flipped = augmented(pixels, RNG(1), **options)
    again, flipped_again = augmented(pixels, RNG(1), **options)
    assert np.array_equal(found, again)
    assert np.array_equal(flipped, flipped_again)
    assert np.array_equal(pixels, before)
    assert (found.shape, found.dtype) == (pixels.shape, np.uint8)
    other, _ = augmented(pixels, RNG(2), **options)
    assert not np.array_equal(found, other)


def test_half_of_the_images_are_mirrored_and_named():
    pixels = some_pixels()
    found, flipped = augmented(pixels, RNG(1), flip=True)
    assert 70 < flipped.sum() < 130
    for before, after, is_flipped in zip(pixels, found, flipped, strict=True):
        assert np.array_equal(after, np.fliplr(before) if is_flipped else before)
    assert np.array_equal(mirrored(mirrored(pixels)), pixels)


def test_a_crop_shows_a_part_of_the_image():
    ramp = np.broadcast_to(
        np.arange(0, 250, 5, dtype=np.uint8)[None, None, :, None], (50, 40, 50, 1)
    )
    found = cropped(np.ascontiguousarray(ramp), 0.4, RNG(1))
    spans = found[:, 0, -1, 0].astype(int) - found[:, 0, 0, 0]
    assert (spans <= 245).all()
    assert spans.min() < 215  # √0.6 of the width, at the least
    assert spans.min() > 245 * np.sqrt(0.6) - 12
    assert (np.diff(found[:, 0, :, 0].astype(int), axis=1) >= 0).all()
    assert np.array_equal(cropped(ramp, 1e-9, RNG(1)), ramp)


def test_low_resolution_blurs_some_and_leaves_the_others():
    pixels = some_pixels()
    found = blurred(pixels, 0.4, RNG(1))
    same = np.array([np.array_equal(a, b) for a, b in zip(pixels, found, strict=True)])
    assert 0.5 < same.mean() < 0.7

    def roughness(images):
        return np.abs(np.diff(images.astype(int), axis=2)).mean()

    assert roughness(found[~same]) < 0.8 * roughness(pixels[~same])


def test_colour_by_hand():
    class Fixed:
        def uniform(self, low, high, shape):
            assert (low, high, shape) == (0.5, 1.5, (3, 1, 1, 1, 1))
            return np.array([1.5, 0.5, 0.0]).reshape(shape)

    pixels = np.array([[[[100, 60, 20], [20, 40, 60]]]], dtype=np.uint8)
    bright = 1.5 * pixels[0, 0].astype(float)
    contrast = bright.mean() + 0.5 * (bright - bright.mean())
    grey = contrast @ [0.299, 0.587, 0.114]
    expected = np.repeat(np.round(grey)[:, None], 3, axis=1)
    assert np.array_equal(recoloured(pixels, 0.5, Fixed())[0, 0], expected)


def test_a_mirrored_image_meets_its_mirrored_old_embedding():
    plain, flipped = torch.arange(8.0).reshape(4, 2), -torch.arange(8.0).reshape(4, 2)
    old = OldKnowledge(plain, torch.zeros(4), (), (), None, flipped)
    rows = torch.tensor([3, 0, 1])
    batch = Batch(
        torch.zeros(3, 2), torch.zeros(3), rows, flipped=torch.tensor([True, False, True])
    )
    assert old.of(batch).tolist() == [[-6, -7], [0, 1], [-2, -3]]
    assert torch.equal(old.of(Batch(torch.zeros(3, 2), torch.zeros(3), rows)), plain[rows])


def test_training_with_the_flip_caches_both_views_and_resumes_to_the_bit(
    glyph_classes, tmp_path, monkeypatch
):
    few = glyph_classes.select(np.arange(64))
    recipe = load_recipe("glyphs", [*TINY, "flip=true", "crop=0.2", "colour=0.2"])
    old = train.train(
        few.select(split(few.labels, "extended-data").old), recipe, tmp_path / "old", device="cpu"
    )
    options = {"old": old, "method": "regress", "device": "cpu", "cache": tmp_path / "cache"}
    seen = []
    make = OldKnowledge.of

    def watched(knowledge, batch):
        seen.append(int(batch.flipped.sum()))
        return make(knowledge, batch)

    with monkeypatch.context() as patch:
        patch.setattr(OldKnowledge, "of", watched)
        whole = train.train(few, recipe, tmp_path / "whole", **options)
    assert 0 < sum(seen) < 16 * len(seen)
    folders = sorted(p.name for p in (tmp_path / "cache").glob("embeddings-*"))
    assert len(folders) == 2
    assert folders[1] == f"{folders[0]}-flipped"
    pixels = read_pixels(few, *old.input.size)
    vectors = np.load(tmp_path / "cache" / folders[1] / "embeddings" / "vectors.npy")
    assert np.array_equal(vectors, embed_pixel_batches(old, pixels, flip=True).vectors)
    mirror_images = [old.embed([few.read(i)[:, ::-1]])[0] for i in few.ids[:5]]
    assert np.allclose(vectors[:5], mirror_images, atol=1e-5)

    epoch = train._Trainer._epoch

    def stopped(self, number, *arguments):
        if number == 2:
            raise KeyboardInterrupt
        return epoch(self, number, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train._Trainer, "_epoch", stopped)
        with pytest.raises(KeyboardInterrupt):
            train.train(few, recipe, tmp_path / "part", **options)
    resumed = train.train(few, recipe, tmp_path / "part", resume=True, **options)
    assert resumed.fingerprint == whole.fingerprint
