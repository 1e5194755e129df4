import pytest

from unibct.data.image_set import select_listed
from unibct.errors import UserError


def test_lists(tmp_path, glyph_classes):
    path = tmp_path / "list.txt"
    path.write_text("\n".join(glyph_classes.ids[30:50]) + "\n")
    chosen = select_listed(glyph_classes, path)
    assert chosen.ids == glyph_classes.ids[30:50]
    assert chosen.labels.min() == 0
    for text, message in [
        ("U+9999/nowhere\n", "line 1: 'U\\+9999/nowhere' is not an image"),
        (f"{glyph_classes.ids[0]}\n" * 2, "line 2: .* listed twice"),
        ("\n", "lists no image"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            select_listed(glyph_classes, path)
    with pytest.raises(UserError, match=r"missing.txt cannot be read .*unibct split"):
        select_listed(glyph_classes, tmp_path / "missing.txt")
