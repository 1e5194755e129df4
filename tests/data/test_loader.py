import dataclasses
import shutil

import numpy as np
import pytest

from tests.distributed.thread_ranks import run_ranks
from unibct.data import decoding
from unibct.data.decoding import Frame, fit
from unibct.data.loader import fits_in_memory, read_pixels
from unibct.data.readers import open_images
from unibct.errors import UserError

FRAME = Frame(32, 32, 1)


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_batches_are_the_same_from_memory_and_from_disk(photo_folder, memory, monkeypatch):
    images = open_images(str(photo_folder))
    pixels = read_pixels(images, FRAME, memory=memory)
    order = np.random.default_rng(0).permutation(len(images))
    got = np.concatenate(list(pixels.batches(order, 50)))
    want = np.stack([fit(images.read(images.ids[i]), 32, 32, 1) for i in order])
    assert np.array_equal(got, want)


def test_unreadable_images_are_listed_or_left_out(photo_folder, tmp_path, monkeypatch):
    for i, source in enumerate(sorted(photo_folder.glob("*/*"))[:30]):
        target = tmp_path / source.parent.name / source.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(source.read_bytes()[:20] if i in (3, 7) else source.read_bytes())
    images = open_images(str(tmp_path))
    with pytest.raises(UserError, match=r"2 unreadable images: .*skip_bad") as error:
        read_pixels(images, FRAME)
    assert images.ids[3] in str(error.value)
    assert images.ids[7] in str(error.value)
    for memory in (0, 1 << 30):
        pixels = read_pixels(dataclasses.replace(images, skip_bad=True), FRAME, memory=memory)
        assert pixels.unreadable == (images.ids[3], images.ids[7])
        assert len(pixels.images) == 28
        assert sum(len(b) for b in pixels.batches(np.arange(28), 10)) == 28
    monkeypatch.setattr(decoding, "_NAMED_IN_ERROR", 1)
    with pytest.raises(UserError, match="and 1 more"):
        read_pixels(images, FRAME)


def test_digest_follows_the_pixels(photo_folder):
    images = open_images(str(photo_folder))
    digest = read_pixels(images, FRAME).digest
    assert read_pixels(images, FRAME, memory=0).digest == digest
    assert read_pixels(images.select(range(9)), FRAME).digest != digest
    white = images.read(images.ids[0]) * 0
    changed = dataclasses.replace(images, read=lambda image_id: white)
    assert read_pixels(changed, FRAME).digest != digest


def test_an_image_that_vanishes_is_named(photo_folder, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(photo_folder, root)
    images = open_images(root)
    pixels = read_pixels(images, FRAME, memory=0)
    (root / images.ids[4]).unlink()
    with pytest.raises(UserError, match=f"{images.ids[4]} cannot be read"):
        list(pixels.batches(np.arange(10), 5))


def test_the_memory_for_pixels_is_a_number_of_bytes(photo_folder, monkeypatch):
    images = open_images(photo_folder)
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")
    assert read_pixels(images, Frame(8, 8, 1))._in_memory is None
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "2G")
    with pytest.raises(UserError, match="UNIBCT_PIXEL_MEMORY=2G: write a number of bytes"):
        read_pixels(images, Frame(8, 8, 1))


def test_finished_vectors_need_four_bytes_a_number():
    for frame, needed in ((Frame(2, 8, 3), 480), (Frame(1, 48, 1, "vectors"), 1920)):
        assert fits_in_memory(10, frame, needed)
        assert not fits_in_memory(10, frame, needed - 1)


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("fault", ["unreadable", "other pixels"])
def test_processes_that_read_differently_all_stop_and_name_the_image(photo_folder, fault, skip_bad):
    images = open_images(photo_folder)

    def read(ranks):
        def faulty(image_id):
            if ranks.rank == 1 and image_id == images.ids[7]:
                if fault == "unreadable":
                    raise decoding.UnreadableImageError("Stale file handle")
                return images.read(image_id)[::-1]
            return images.read(image_id)

        own_images = dataclasses.replace(images, read=faulty, skip_bad=skip_bad)
        return read_pixels(own_images, FRAME, ranks=ranks)

    for error in run_ranks(2, read):
        assert isinstance(error, UserError)
        assert str(error).startswith(f"the processes do not read the same image {images.ids[7]}")


def test_processes_that_read_alike_have_one_digest(photo_folder):
    images = open_images(photo_folder)
    alone = read_pixels(images, FRAME)
    for memory in (0, 1 << 30):
        for pixels in run_ranks(
            3, lambda ranks, memory=memory: read_pixels(images, FRAME, memory=memory, ranks=ranks)
        ):
            assert pixels.digest == alone.digest
