import dataclasses
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.data.decode_counter import DecodeCounter
from tests.data.example_images import jpeg
from tests.distributed.thread_ranks import run_ranks
from unibct.data.checked_set import (
    CheckedSet,
    checked_batches,
    checked_set,
    find_checked_set,
    read_image,
    save_checked_set,
    scan_images,
    source_stamp,
)
from unibct.data.convert import convert
from unibct.data.decoding import Frame, UnreadableImageError
from unibct.data.loader import read_pixels
from unibct.data.readers import open_images
from unibct.errors import UserError

SIZE = Frame(16, 16, 1)


@pytest.fixture
def folder(photo_folder, tmp_path, monkeypatch):
    """A copy of the photos, with an empty cache."""
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(photo_folder, tmp_path / "photos")


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize("layout", ["folder", "recordio"])
def test_unchanged_images_are_checked_once(folder, tmp_path, memory, layout, monkeypatch):
    if layout == "recordio":
        convert(open_images(folder), tmp_path / "rec", to="recordio")
        folder = tmp_path / "rec"
    counter = DecodeCounter(monkeypatch)
    first = read_pixels(open_images(folder), SIZE, memory=memory)
    assert counter.taken() == len(first.images)
    again = read_pixels(open_images(folder), SIZE, memory=memory)
    assert counter.taken() == 0
    assert again.digest == first.digest
    order = np.random.default_rng(0).permutation(len(first.images))
    for use in range(2):
        batches = np.concatenate(list(again.batches(order, 50)))
        assert counter.taken() == (len(order) if memory == 0 or use == 0 else 0)
    assert np.array_equal(batches, np.concatenate(list(first.batches(order, 50))))


def test_records_that_no_run_uses_are_removed(folder, tmp_path, monkeypatch):
    images = open_images(folder)
    read_pixels(images, SIZE)
    records = tmp_path / "cache" / "checked-sets"
    (used,) = records.iterdir()
    for path in (used, records / "unused.json"):
        path.touch()
        os.utime(path, (0, 0))
    counter = DecodeCounter(monkeypatch)
    read_pixels(images, SIZE)
    assert counter.taken() == 0
    read_pixels(images.select(range(20)), SIZE)
    assert used in records.iterdir()
    assert len(list(records.iterdir())) == 2


@pytest.mark.parametrize("change", ["content", "size", "class"])
def test_changed_files_are_found(folder, change, monkeypatch):
    first = read_pixels(open_images(folder), SIZE)
    path = folder / first.images.ids[5]
    status = path.stat()
    if change == "class":
        path.rename(folder / "class 03" / f"moved{path.suffix}")
    else:
        path.write_bytes(jpeg(3))
    if change == "size":  # and the time stays the same
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    counter = DecodeCounter(monkeypatch)
    assert read_pixels(open_images(folder), SIZE).digest != first.digest
    assert counter.taken() == len(first.images)


def test_other_pixels_of_the_same_files_are_checked_again(folder, monkeypatch):
    images = open_images(folder)
    digest = read_pixels(images, SIZE).digest
    counter = DecodeCounter(monkeypatch)
    assert read_pixels(images, Frame(8, 8, 1)).digest != digest
    assert read_pixels(images.select(range(20)), SIZE).digest != digest
    assert counter.taken() == len(images) + 20
    stretched, cropped = Frame(16, 8, 1), Frame(16, 8, 1, "crop")
    assert read_pixels(images, cropped).digest != read_pixels(images, stretched).digest
    assert counter.taken() == 2 * len(images)
    upside_down = dataclasses.replace(images, read=lambda i: images.read(i)[::-1])
    for _ in range(2):
        assert read_pixels(upside_down, SIZE).digest != digest
        assert counter.taken() == len(images)


def test_unreadable_images_are_read_again_and_alone(folder, monkeypatch):
    images = open_images(folder)
    bad = [folder / images.ids[row] for row in (3, 40)]
    contents = [path.read_bytes() for path in bad]
    for path in bad:
        path.write_bytes(b"no image")
    with pytest.raises(UserError, match="2 unreadable images") as error:
        read_pixels(images, SIZE)
    skipping = replace(images, skip_bad=True)
    first = read_pixels(skipping, SIZE)
    counter = DecodeCounter(monkeypatch)
    with pytest.raises(UserError) as again:
        read_pixels(images, SIZE)
    assert str(again.value) == str(error.value)
    pixels = read_pixels(skipping, SIZE)
    assert counter.taken() == 4
    assert (pixels.digest, pixels.unreadable) == (first.digest, first.unreadable)
    batches = [np.concatenate(list(p.batches(np.arange(60), 7))) for p in (pixels, first)]
    assert np.array_equal(*batches)
    # A stale network file looks the same afterwards: the same size and time.
    stamp = source_stamp(images)
    for path, content in zip(bad, contents, strict=True):
        path.write_bytes(content)
    save_checked_set(images, SIZE, CheckedSet("old", {3: "stale"}), source_stamp(images))
    assert source_stamp(images) != stamp
    assert read_pixels(images, SIZE).unreadable == ()


def test_the_first_process_decides(folder, monkeypatch):
    images = open_images(folder)
    alone = read_pixels(images, SIZE, memory=0)
    counter = DecodeCounter(monkeypatch)
    calls = iter(range(2))

    def question(*arguments):  # only one process may ask
        assert next(calls) == 0
        return find_checked_set(*arguments)

    monkeypatch.setattr("unibct.data.loader.find_checked_set", question)
    results = run_ranks(2, lambda ranks: read_pixels(images, SIZE, memory=0, ranks=ranks))
    assert [pixels.digest for pixels in results] == [alone.digest] * 2
    assert counter.taken() == 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"[]", b'{"format": 1}', b"\xff", b'{"a": [[[', None])
def test_a_damaged_record_is_replaced_and_a_missing_cache_costs_only_time(
    folder, tmp_path, damage, monkeypatch
):
    images = open_images(folder)
    digest = read_pixels(images, SIZE).digest
    (record,) = (tmp_path / "cache" / "checked-sets").iterdir()
    if damage is None:
        monkeypatch.setattr("unibct.data.checked_set.user_cache_folder", lambda: None)
    else:
        record.write_bytes(damage)
    assert read_pixels(images, SIZE).digest == digest


def test_files_that_change_during_the_check_are_checked_again(folder, monkeypatch):
    images = open_images(folder)
    first = folder / images.ids[0]

    def read(image_id):
        if image_id == images.ids[-1]:
            os.utime(first)
        return real(image_id)

    real = images.read
    changing = dataclasses.replace(images, read=read)
    read.encoded = images.encoded
    read_pixels(changing, SIZE)
    assert find_checked_set(images, SIZE, source_stamp(images)) is None


SCAN_SIZE = Frame(32, 32, 1)


def with_unreadable(images, bad_rows):
    """The same set, in which some images cannot be read."""
    bad_ids = {images.ids[row] for row in bad_rows}

    def read(image_id):
        if image_id in bad_ids:
            raise UnreadableImageError("torn")
        return images.read(image_id)

    return replace(images, read=read)


def test_batches_and_a_whole_scan_find_the_same(glyph_classes):
    images = with_unreadable(glyph_classes, [3, 40])
    batches = list(checked_batches(images, range(len(images)), SCAN_SIZE, 16))
    rows = np.concatenate([batch.rows for batch in batches])
    assert rows.tolist() == [row for row in range(len(images)) if row not in (3, 40)]
    for batch in batches:
        for row, pixels in zip(batch.rows, batch.pixels, strict=True):
            assert np.array_equal(pixels, read_image(glyph_classes, int(row), SCAN_SIZE))
    digests = np.zeros((len(images), 16), dtype=np.uint8)
    digests[rows] = np.concatenate([batch.pixel_digests for batch in batches])
    problems = {row: text for batch in batches for row, text in batch.problems.items()}
    assert problems == {3: "torn", 40: "torn"}
    found, pixels = scan_images(images, SCAN_SIZE, keep=False)
    assert pixels is None
    assert found == checked_set(images, digests, problems)


def test_the_digest_is_that_of_the_readable_images(glyph_classes):
    some = glyph_classes.select(range(1, 60))
    broken = with_unreadable(glyph_classes.select(range(60)), [0])
    found, _ = scan_images(broken, SCAN_SIZE, keep=False)
    assert found.digest == read_pixels(some, SCAN_SIZE).digest
