from dataclasses import replace

import numpy as np

from unibct.data.decoding import Frame, UnreadableImageError
from unibct.data.loader import read_pixels
from unibct.data.scan import Scan, checked_batches, checked_set, read_image
from unibct.progress import Silent

SIZE = Frame(32, 32, 1)


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
    batches = list(checked_batches(images, range(len(images)), SIZE, 16))
    rows = np.concatenate([batch.rows for batch in batches])
    assert rows.tolist() == [row for row in range(len(images)) if row not in (3, 40)]
    for batch in batches:
        for row, pixels in zip(batch.rows, batch.pixels, strict=True):
            assert np.array_equal(pixels, read_image(glyph_classes, int(row), SIZE))
    digests = np.zeros((len(images), 16), dtype=np.uint8)
    digests[rows] = np.concatenate([batch.pixel_digests for batch in batches])
    problems = {row: text for batch in batches for row, text in batch.problems.items()}
    assert problems == {3: "torn", 40: "torn"}
    found = Scan(images, SIZE, keep=False).run(Silent(), None)
    assert found == checked_set(images, digests, problems)


def test_the_digest_is_that_of_the_readable_images(glyph_classes):
    some = glyph_classes.select(range(1, 60))
    broken = with_unreadable(glyph_classes.select(range(60)), [0])
    found = Scan(broken, SIZE, keep=False).run(Silent(), None)
    assert found.digest == read_pixels(some, SIZE).digest
