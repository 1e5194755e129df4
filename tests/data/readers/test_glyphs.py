import csv
import hashlib
import importlib.resources
import unicodedata
from collections import Counter

import numpy as np
import pytest

from unibct.data.readers import open_images
from unibct.data.readers.glyphs import FINAL_FILE, MAIN_FILE, PARTS, load_glyph_file, unpack_pixels
from unibct.errors import UserError

OPEN_LICENCES = {"OFL-1.1", "Apache-2.0"}


# Models that were trained on these images have fingerprints, and results were published: a change
# of a byte is a change of both.
DIGESTS = {
    MAIN_FILE: "628c702c27e301c7cf5e82543363d7dccf116b0d92ee5da0200a63cf1cf6d6db",
    FINAL_FILE: "302545e593890e2d53952f962a999a781f7be7b2dcd551068dd0c156b38ed80d",
}


def resource(name):
    return importlib.resources.files("unibct.data.readers").joinpath(name)


@pytest.fixture
def glyphs():
    return load_glyph_file(MAIN_FILE)


@pytest.fixture
def final():
    return load_glyph_file(FINAL_FILE)


each_file = pytest.mark.parametrize("name", DIGESTS)


def test_unpack_pixels_gives_high_half_of_a_byte_first():
    pixels = np.zeros((2, 512), np.uint8)
    pixels[1, 16] = 0xF1  # row 1, columns 0 and 1
    images = unpack_pixels(pixels)
    assert images.shape == (2, 32, 32)
    assert images[1, 1, :3].tolist() == [255, 17, 0]
    assert images.sum(dtype=np.int64) == 272


@each_file
def test_shapes_and_order(name):
    glyphs = load_glyph_file(name)
    count = len(glyphs.labels)
    assert glyphs.images.shape == (count, 32, 32)
    assert glyphs.images.dtype == np.uint8
    assert glyphs.typefaces.shape == (count,)
    assert glyphs.labels.dtype == glyphs.typefaces.dtype == np.int64
    order = np.lexsort((glyphs.typefaces, glyphs.labels))
    assert order.tolist() == list(range(count))
    codes = [int(name.removeprefix("U+"), 16) for name in glyphs.class_names]
    assert codes == sorted(set(codes))
    assert glyphs.typeface_names == tuple(sorted(set(glyphs.typeface_names)))


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
    assert "U+0041" in glyphs.class_names
    assert "inter" in glyphs.typeface_names


def test_each_class_is_in_one_part(glyphs):
    assert glyphs.parts.shape == (len(glyphs.class_names),)
    shares = np.bincount(glyphs.parts, minlength=len(PARTS)) / len(glyphs.parts)
    assert shares == pytest.approx([0.6, 0.1, 0.3, 0], abs=0.005)


def test_the_final_classes_are_letters_and_digits_of_seven_scripts_in_16_to_24_typefaces(final):
    assert np.array_equal(np.unique(final.labels), np.arange(len(final.class_names)))
    assert (final.parts == PARTS.index("final")).all()
    assert "U+0E01" in final.class_names
    assert "trirong" in final.typeface_names
    counts = np.bincount(final.labels)
    assert counts.min() == 16
    assert counts.max() == 24
    characters = [chr(int(name.removeprefix("U+"), 16)) for name in final.class_names]
    assert {unicodedata.category(character)[0] for character in characters} == {"L", "N"}
    scripts = Counter(unicodedata.name(character).split()[0] for character in characters)
    assert set(scripts) == {"ARABIC", "DEVANAGARI", "GREEK", "HEBREW", "KHMER", "LATIN", "THAI"}
    assert max(scripts.values()) == 56
    assert min(scripts.values()) > 50


def test_no_two_images_are_identical(glyphs, final):
    images = [*glyphs.images, *final.images]
    assert len({image.tobytes() for image in images}) == len(images)


@each_file
def test_dark_ink_on_white_paper_centred(name):
    glyphs = load_glyph_file(name)
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


@each_file
def test_each_file_is_small_and_keeps_every_byte(name):
    content = resource(name).read_bytes()
    assert len(content) < 2_000_000
    assert hashlib.sha256(content).hexdigest() == DIGESTS[name]


@each_file
def test_arrays_are_read_only(name):
    glyphs = load_glyph_file(name)
    for array in (glyphs.images, glyphs.labels, glyphs.typefaces, glyphs.parts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@each_file
def test_every_typeface_is_recorded_with_an_open_licence(name):
    glyphs = load_glyph_file(name)
    table = resource(f"{name.removesuffix('.npz')}_typefaces.csv")
    with table.open(encoding="utf-8", newline="") as file:
        typeface_rows = list(csv.DictReader(file))
    assert tuple(row["name"] for row in typeface_rows) == glyphs.typeface_names
    counts = np.bincount(glyphs.typefaces)
    assert [int(row["images"]) for row in typeface_rows] == counts.tolist()
    for row in typeface_rows:
        assert row["licence"] in OPEN_LICENCES, row["name"]
        assert row["copyright"], row["name"]
        assert len(row["sha256"]) == 64, row["name"]


def names_of(part, half):
    """The first half of each image id is its character, the second its typeface."""
    return {image_id.split("/")[half] for image_id in open_images(f"glyphs:{part}").ids}


def test_glyph_parts_have_disjoint_classes():
    parts = [open_images(f"glyphs:{part}") for part in ("train", "val", "test", "final")]
    names = [name for part in parts for name in part.class_names]
    assert len(names) == len(set(names)) == 1449
    assert [len(part.class_names) for part in parts] == [636, 106, 318, 389]
    for refused in ("glyphs", "glyphs:all"):
        with pytest.raises(UserError, match=r"say which part, .*, glyphs:final$"):
            open_images(refused)


def test_the_final_part_has_other_characters_in_other_typefaces():
    for part in ("train", "val", "test"):
        assert not names_of("final", 0) & names_of(part, 0)
        assert not names_of("final", 1) & names_of(part, 1)
    # Nor is one of the same design as another: Noto Sans Thai would be a Noto Sans.
    first_words = [{name.split("-")[0] for name in names_of(p, 1)} for p in ("final", "train")]
    assert not first_words[0] & first_words[1]


def test_the_final_part_is_read_like_the_others():
    final, other = open_images("glyphs:final"), open_images("glyphs:test")
    assert (final.name, len(final)) == ("glyphs:final", 7972)
    assert np.array_equal(np.unique(final.labels), np.arange(len(final.class_names)))
    images = final.read(final.ids[-1]), other.read(other.ids[-1])
    assert images[0].shape == images[1].shape
    assert images[0].dtype == images[1].dtype
    assert final.ids[-1].split("/")[0] == final.class_names[final.labels[-1]]
