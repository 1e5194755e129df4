from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import TINY
from unibct.data.augmentation import Changes, changed, drawn_changes, mirrored
from unibct.data.loader import read_pixels
from unibct.data.scenarios import split
from unibct.embeddings.extraction import embed_pixel_batches
from unibct.embeddings.store import open_embeddings
from unibct.methods.base import Batch, OldEmbeddings
from unibct.training import loop, train
from unibct.training.recipe import load_recipe

RNG = np.random.default_rng
ALL = {"shift": 2, "flip": True, "crop": 0.3, "colour": 0.3}


def some_pixels(channels=3, count=200):
    return RNG(0).integers(0, 256, (count, 12, 10, channels), dtype=np.uint8)


def test_nothing_is_changed_unless_asked():
    pixels = some_pixels()
    changes = drawn_changes(len(pixels), RNG(1))
    assert changes == Changes()
    assert changed(pixels, changes) is pixels


@pytest.mark.parametrize("channels", [1, 3])
def test_all_changes_together_are_seeded_and_leave_the_input_alone(channels):
    pixels = some_pixels(channels)
    before = pixels.copy()
    found, again, other = (
        changed(pixels, drawn_changes(len(pixels), RNG(seed), **ALL)) for seed in (1, 1, 2)
    )
    assert np.array_equal(found, again)
    assert np.array_equal(pixels, before)
    assert (found.shape, found.dtype) == (pixels.shape, np.uint8)
    assert not np.array_equal(found, other)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_batch_that_is_shared_out_has_the_same_pixels(channels, size):
    pixels = some_pixels(channels)
    changes = drawn_changes(len(pixels), RNG(1), **ALL)
    parts = [slice(start, start + size) for start in range(0, len(pixels), size)]
    found = [changed(pixels[part], changes.part(part)) for part in parts]
    assert np.array_equal(np.concatenate(found), changed(pixels, changes))
    assert changed(pixels[:0], changes.part(slice(0, 0))).shape == (0, 12, 10, channels)


def test_half_of_the_images_are_mirrored_and_named():
    pixels = some_pixels()
    changes = drawn_changes(len(pixels), RNG(1), flip=True)
    found = changed(pixels, changes)
    assert 70 < changes.flipped.sum() < 130
    for before, after, is_flipped in zip(pixels, found, changes.flipped, strict=True):
        assert np.array_equal(after, np.fliplr(before) if is_flipped else before)
    assert np.array_equal(mirrored(mirrored(pixels)), pixels)


def test_a_crop_shows_a_part_of_the_image():
    row = np.arange(0, 250, 5, dtype=np.uint8)[None, None, :, None]
    ramp = np.broadcast_to(row, (50, 40, 50, 1))
    found = changed(ramp, drawn_changes(50, RNG(1), crop=0.4))
    spans = found[:, 0, -1, 0].astype(int) - found[:, 0, 0, 0]
    assert (spans <= 245).all()
    assert spans.min() < 215  # √0.6 of the width, at the least
    assert spans.min() > 245 * np.sqrt(0.6) - 12
    assert (np.diff(found[:, 0, :, 0].astype(int), axis=1) >= 0).all()
    assert np.array_equal(changed(ramp, drawn_changes(50, RNG(1), crop=1e-9)), ramp)


def test_colour_by_hand():
    pixels = np.array([[[[100, 60, 20], [20, 40, 60]]]], dtype=np.uint8)
    bright = 1.5 * pixels[0, 0].astype(float)
    contrast = bright.mean() + 0.5 * (bright - bright.mean())
    grey = contrast @ [0.299, 0.587, 0.114]
    expected = np.repeat(np.round(grey)[:, None], 3, axis=1)
    found = changed(pixels, Changes(colour=np.array([[1.5, 0.5, 0.0]])))
    assert np.array_equal(found[0, 0], expected)
    drawn = drawn_changes(500, RNG(1), colour=0.5).colour
    assert drawn.shape == (500, 3)
    assert 0.5 <= drawn.min() < 0.52 < 1.48 < drawn.max() <= 1.5


def test_a_shift_by_hand():
    pixels = np.arange(6, dtype=np.uint8).reshape(1, 2, 3, 1)
    moves = {(1, 1): [[0, 1, 2], [3, 4, 5]], (0, 1): [[0, 1, 2], [0, 1, 2]],
             (2, 1): [[3, 4, 5], [3, 4, 5]], (1, 2): [[1, 2, 2], [4, 5, 5]]}  # fmt: skip
    for (down, right), expected in moves.items():
        found = changed(pixels, Changes(shift=np.array([[1, down, right]])))
        assert found[0, :, :, 0].tolist() == expected
    drawn = drawn_changes(300, RNG(1), shift=2).shift
    assert {*map(tuple, drawn[:, 1:].tolist())} == {(a, b) for a in range(5) for b in range(5)}


def test_a_mirrored_image_meets_its_mirrored_old_embedding():
    plain, flipped = torch.arange(8.0).reshape(4, 2), -torch.arange(8.0).reshape(4, 2)
    old = OldEmbeddings(plain, torch.zeros(4), (), (), None, flipped)
    rows = torch.tensor([3, 0, 1])
    batch = Batch(torch.zeros(3, 2), torch.zeros(3), rows)
    assert torch.equal(old.of(batch), plain[rows])
    turned = replace(batch, flipped=torch.tensor([True, False, True]))
    assert old.of(turned).tolist() == [[-6, -7], [0, 1], [-2, -3]]


@pytest.mark.slow
def test_training_with_the_flip_caches_both_views_and_resumes_to_the_bit(
    glyph_classes, tmp_path, monkeypatch
):
    few = glyph_classes.select(np.arange(64))
    recipe = load_recipe("glyphs", [*TINY, "flip=true", "crop=0.2", "colour=0.2"])
    some = few.select(split(few.labels, "extended-data").old)
    old = train.train(some, recipe, tmp_path / "old", device="cpu")
    options = {"old": old, "method": "regress", "device": "cpu", "cache": tmp_path / "cache"}
    seen = []
    make = OldEmbeddings.of

    def watched(knowledge, batch):
        seen.append(int(batch.flipped.sum()))
        return make(knowledge, batch)

    with monkeypatch.context() as patch:
        patch.setattr(OldEmbeddings, "of", watched)
        whole = train.train(few, recipe, tmp_path / "whole", **options)
    assert 0 < sum(seen) < 16 * len(seen)
    folders = sorted(p.name for p in (tmp_path / "cache").glob("embeddings-*"))
    assert len(folders) == 2
    assert folders[1] == f"{folders[0]}-flipped"
    pixels = read_pixels(few, old.input.frame)
    vectors = open_embeddings(tmp_path / "cache" / folders[1]).vectors
    assert np.array_equal(vectors, embed_pixel_batches(old, pixels, flip=True).vectors)
    mirror_images = [old.embed([few.read(i)[:, ::-1]])[0] for i in few.ids[:5]]
    assert np.allclose(vectors[:5], mirror_images, atol=1e-5)

    take_steps = loop.TrainingLoop.take_steps

    def stopped(self, *arguments):
        if self.state.epoch == 2:
            raise KeyboardInterrupt
        take_steps(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "take_steps", stopped)
        with pytest.raises(KeyboardInterrupt):
            train.train(few, recipe, tmp_path / "part", **options)
    resumed = train.train(few, recipe, tmp_path / "part", resume=True, **options)
    assert resumed.fingerprint == whole.fingerprint
