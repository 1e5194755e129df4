import numpy as np
import pytest

from tests.data.example_images import jpeg
from unibct.data.loader import read_pixels
from unibct.data.readers.table import open_images
from unibct.data.scan import Scan, checked_batches, checked_set, read_image
from unibct.progress import Silent

SIZE = (16, 16, 1)


@pytest.fixture
def images(tmp_path):
    """Ten images, two of them damaged."""
    for number in range(10):
        path = tmp_path / f"class {number // 4}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no image" if number in (2, 7) else jpeg(number))
    return open_images(tmp_path)


@pytest.mark.parametrize("batch_size", [1, 3, 10, 99])
def test_batches_have_pixels_digests_and_problems(images, batch_size):
    batches = list(checked_batches(images, range(1, 9), SIZE, batch_size))
    rows = np.concatenate([batch.rows for batch in batches]).tolist()
    assert rows == [1, 3, 4, 5, 6, 8]
    pixels = np.concatenate([batch.pixels for batch in batches])
    assert np.array_equal(pixels, np.stack([read_image(images, row, SIZE) for row in rows]))
    assert sorted(row for batch in batches for row in batch.problems) == [2, 7]


def test_batches_and_a_scan_find_the_same(images):
    digests, problems = np.zeros((10, 16), dtype=np.uint8), {}
    for batch in checked_batches(images, range(10), SIZE, 4):
        digests[batch.rows] = batch.pixel_digests
        problems |= batch.problems
    scanned = Scan(images, SIZE, keep=False).run(Silent(), None)
    assert checked_set(images, digests, problems) == scanned
    assert list(scanned.problems) == [2, 7]
    assert scanned.digest == read_pixels(images, *SIZE, skip_bad=True).digest
    assert scanned.digest == read_pixels(scanned.readable(images, skip_bad=True), *SIZE).digest
