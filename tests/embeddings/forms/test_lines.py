import numpy as np
import pytest

from unibct.embeddings.forms.lines import (
    classes_of,
    decoded_lines,
    encoded_lines,
    names_of,
    read_lines,
)
from unibct.errors import UserError


def test_lines_come_back_as_they_were():
    values = ("a b", "", "ü/é.jpg", " c ")
    assert decoded_lines(encoded_lines(values, "id"), "ids", 4) == values
    assert decoded_lines(b"a\r\nb", "ids", 2) == ("a", "b")
    assert decoded_lines(b"", "ids", 0) == ()


def test_bad_lines_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"row 1: the id 'a\\nb' has a line break"):
        encoded_lines(("x", "a\nb"), "id")
    with pytest.raises(UserError, match="ids has 2 lines for 3 rows"):
        decoded_lines(b"a\nb\n", "ids", 3)
    (tmp_path / "x").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_lines(tmp_path / "x", 1)


def test_classes_are_numbered_as_they_appear():
    labels, names = classes_of(["b", "a", "b"], 3)
    assert labels.tolist() == [0, 1, 0]
    assert names == ("b", "a")
    assert names_of(labels, names) == ["b", "a", "b"]
    assert classes_of(None, 2)[0].tolist() == [-1, -1]
    assert names_of(np.empty(0, dtype=np.int64), ()) == []
