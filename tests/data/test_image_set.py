import dataclasses

import numpy as np
import pytest

from unibct.data.image_set import read_id_list, select_listed
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
        ("\n", "lists no id"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            select_listed(glyph_classes, path)
    with pytest.raises(UserError, match=r"missing.txt cannot be read .*one id per line"):
        select_listed(glyph_classes, tmp_path / "missing.txt")


def test_a_list_is_read_with_a_byte_order_mark_and_other_line_ends(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes("\ufeffä/1\r\n\r\nb/ 2\r\n".encode())
    assert read_id_list(path) == {"ä/1": 1, "b/ 2": 3}
    path.write_bytes(b"a\xff\n")
    with pytest.raises(UserError, match=r"list.txt is not a UTF-8 text file"):
        read_id_list(path)


def test_the_source_of_class_numbers_is_kept_and_is_not_in_the_digest(glyph_classes):
    assert glyph_classes.class_identities == glyph_classes.class_names
    numbered = dataclasses.replace(glyph_classes, class_source="file")
    chosen = numbered.select(range(20))
    name = glyph_classes.class_names[0]
    assert chosen.class_identities[0] == f"{name} of file"
    assert chosen.class_names[0] == name
    assert numbered.digest == glyph_classes.digest  # folders of earlier versions stay valid


def test_a_selection_drops_empty_classes(glyph_classes):
    rows = np.flatnonzero(np.isin(glyph_classes.labels, [3, 7]))[::-1]
    chosen = glyph_classes.select(rows)
    assert chosen.ids == tuple(glyph_classes.ids[row] for row in rows)
    assert chosen.class_names == (glyph_classes.class_names[3], glyph_classes.class_names[7])
    assert set(chosen.labels.tolist()) == {0, 1}
    assert [chosen.position[image_id] for image_id in chosen.ids] == list(range(len(chosen)))
    for image_id in chosen.ids:
        before = glyph_classes.labels[glyph_classes.position[image_id]]
        after = chosen.labels[chosen.position[image_id]]
        assert chosen.class_names[after] == glyph_classes.class_names[before]


def test_the_digest_follows_ids_order_and_classes(glyph_classes):
    few = glyph_classes.select(range(50))
    assert few.digest == glyph_classes.select(range(50)).digest
    assert few.digest != glyph_classes.select(range(49)).digest
    assert few.digest != glyph_classes.select(range(50)[::-1]).digest
    renamed = dataclasses.replace(few, class_names=tuple(f"{name}x" for name in few.class_names))
    assert few.digest != renamed.digest
