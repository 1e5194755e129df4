import pytest

from unibct.data.readers.table import open_images
from unibct.errors import UserError


def test_glyph_parts_have_disjoint_classes():
    parts = [open_images(f"glyphs:{part}") for part in ("train", "val", "test")]
    names = [set(part.class_names) for part in parts]
    assert not names[0] & names[1]
    assert not (names[0] | names[1]) & names[2]
    with pytest.raises(UserError, match="say which part"):
        open_images("glyphs")
    with pytest.raises(UserError, match="say which part"):
        open_images("glyphs:all")
