import numpy as np
import pytest

from unibct.data.readers.table import open_images
from unibct.errors import UserError


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
    final = open_images("glyphs:final")
    assert final.name == "glyphs:final"
    assert len(final) == 7972
    assert np.array_equal(np.unique(final.labels), np.arange(len(final.class_names)))
    other = open_images("glyphs:test")
    images = final.read(final.ids[-1]), other.read(other.ids[-1])
    assert images[0].shape == images[1].shape
    assert images[0].dtype == images[1].dtype
    assert final.ids[-1].split("/")[0] == final.class_names[final.labels[-1]]
