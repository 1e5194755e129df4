import csv
import importlib.resources

import numpy as np
import pytest

from unibct.data.readers.embedded_glyphs import PARTS, load_glyph_file, unpack_pixels

OPEN_LICENCES = {"OFL-1.1", "Apache-2.0"}


@pytest.fixture
def glyphs():
    return load_glyph_file()


@pytest.fixture
def typeface_rows():
    resource = importlib.resources.files("unibct.data.readers").joinpath("glyphs_typefaces.csv")
    with resource.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_unpack_pixels_gives_high_half_of_a_byte_first():
    pixels = np.zeros((2, 512), np.uint8)
    pixels[1, 16] = 0xF1  # row 1, columns 0 and 1
    images = unpack_pixels(pixels)
    assert images.shape == (2, 32, 32)
    assert images[1, 1, :3].tolist() == [255, 17, 0]
    assert images.sum(dtype=np.int64) == 272


def test_shapes_and_order(glyphs):
    count = len(glyphs.labels)
    assert glyphs.images.shape == (count, 32, 32)
    assert glyphs.images.dtype == np.uint8
    assert glyphs.typefaces.shape == (count,)
    assert glyphs.labels.dtype == glyphs.typefaces.dtype == np.int64
    order = np.lexsort((glyphs.typefaces, glyphs.labels))
    assert order.tolist() == list(range(count))
    assert glyphs.class_names == tuple(
        sorted(set(glyphs.class_names), key=lambda name: int(name.removeprefix("U+"), 16))
    )
    assert "U+0041" in glyphs.class_names
    assert glyphs.typeface_names == tuple(sorted(set(glyphs.typeface_names)))
    assert "inter" in glyphs.typeface_names


def test_at_least_900_classes_in_20_to_24_distinct_typefaces(glyphs):
    classes = len(glyphs.class_names)
    assert classes >= 900
    assert np.array_equal(np.unique(glyphs.labels), np.arange(classes))
    counts = np.bincount(glyphs.labels)
    assert counts.min() >= 20
    assert counts.max() <= 24
    pairs = set(zip(glyphs.labels.tolist(), glyphs.typefaces.tolist(), strict=True))
    assert len(pairs) == len(glyphs.labels)
    used = np.unique(glyphs.typefaces)
    assert np.array_equal(used, np.arange(len(glyphs.typeface_names)))


def test_each_class_is_in_one_part(glyphs):
    assert glyphs.parts.shape == (len(glyphs.class_names),)
    shares = np.bincount(glyphs.parts, minlength=len(PARTS)) / len(glyphs.parts)
    assert shares == pytest.approx([0.6, 0.1, 0.3], abs=0.005)


def test_no_two_images_are_identical(glyphs):
    assert len({image.tobytes() for image in glyphs.images}) == len(glyphs.images)


def test_dark_ink_on_white_paper_centred(glyphs):
    assert (glyphs.images.min(axis=(1, 2)) < 255).all()
    assert np.median(glyphs.images) == 255
    columns = (glyphs.images < 255).any(axis=1)
    left = columns.argmax(axis=1)
    right = columns[:, ::-1].argmax(axis=1)
    # Faint ink at one side may be rounded to white.
    assert np.abs(left - right).max() <= 3


def test_capital_h_has_the_same_height_and_baseline(glyphs):
    images = glyphs.images[glyphs.labels == glyphs.class_names.index("U+0048")]
    rows = (images < 128).any(axis=2)
    top = rows.argmax(axis=1)
    bottom = 32 - rows[:, ::-1].argmax(axis=1)
    assert np.median(top) == 9
    assert np.median(bottom) == 24
    assert np.abs(top - 9).max() <= 1


def test_file_is_small():
    resource = importlib.resources.files("unibct.data.readers").joinpath("glyphs.npz")
    assert len(resource.read_bytes()) <= 10_000_000


def test_arrays_are_read_only(glyphs):
    for array in (glyphs.images, glyphs.labels, glyphs.typefaces, glyphs.parts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_every_typeface_is_recorded_with_an_open_licence(glyphs, typeface_rows):
    assert tuple(row["name"] for row in typeface_rows) == glyphs.typeface_names
    counts = np.bincount(glyphs.typefaces)
    assert [int(row["images"]) for row in typeface_rows] == counts.tolist()
    for row in typeface_rows:
        assert row["licence"] in OPEN_LICENCES, row["name"]
        assert row["copyright"], row["name"]
        assert len(row["sha256"]) == 64, row["name"]
