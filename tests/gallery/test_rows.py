import numpy as np
import pytest

from tests.gallery.conftest import some_rows
from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.rows import (
    changed_rows,
    checked_filter,
    checked_id,
    checked_label,
    checked_metadata,
    row_digest,
    row_type,
    searchable_kinds,
)


def row_types(gallery):
    state = gallery.folder.state
    return [row_type(state.kinds[kind], state.standing) for kind in state.kinds]


def test_rows_are_older_mapped_or_own(upgraded, forward_map):
    assert row_types(upgraded) == ["older", "own"]
    upgraded.backfill(map_folder=forward_map)
    assert row_types(upgraded) == ["older", "own", "mapped"]


def test_a_model_searches_its_own_rows_and_those_it_may(upgraded):
    state = upgraded.folder.state
    old, new = state.kinds
    assert searchable_kinds(state, state.standing) == [old, new]
    upgraded.add(toy_images(per_class=1, first=20))
    upgraded.rollback()
    state = upgraded.folder.state
    assert list(state.kinds) == [old, new]
    assert searchable_kinds(state, state.standing) == [old]


KIND = "a" * 32
VECTOR = np.array([0.6, 0.8], dtype=np.float32)


def test_the_digest_changes_with_every_part_of_a_row():
    parts = (KIND, 1, "id", "label", {"a": 1}, VECTOR)
    others = ("b" * 32, 2, "Id", None, {"a": True}, np.nextafter(VECTOR, 1))
    digests = {row_digest(*parts)}
    for place, other in enumerate(others):
        changed = (*parts[:place], other, *parts[place + 1 :])
        digests.add(row_digest(*changed))
    assert len(digests) == 7
    assert row_digest(*parts) == row_digest(KIND, 1, "id", "label", {"a": 1}, VECTOR.copy())


def test_changed_rows_names_the_row():
    rows = some_rows(KIND, ["a", "b", "c"])
    assert changed_rows(KIND, rows) == []
    rows.vectors[1, 0] += 1
    assert changed_rows(KIND, rows) == ["b"]


def test_take_keeps_rows_whole():
    rows = some_rows(KIND, ["a", "b", "c"], metadata=[{"n": 0}, {"n": 1}, {"n": 2}])
    taken = rows.take([2, 0])
    assert taken.ids == ("c", "a")
    assert taken.metadata == ({"n": 2}, {"n": 0})
    assert changed_rows(KIND, taken) == []


VALUES = ([1], float("nan"), "x\0", "\ud800", 1 << 63, -(1 << 63))


@pytest.mark.parametrize(
    ("check", "refused"),
    [
        (checked_id, ["", "a\0b", "x" * 513, "ü" * 257, "\ud800"]),
        (checked_label, ["\ud800", "ü" * 257, "a\0"]),
        (checked_metadata, [["red"], {"a b": 1}, {'a"': 1}, *({"a": value} for value in VALUES)]),
    ],
)
def test_what_no_engine_could_keep_is_refused(check, refused):
    for bad in refused:
        with pytest.raises(UserError, match="row 3"):
            check(bad, "row 3")


def test_flat_metadata_passes():
    numbers = {"size": 3, "most": (1 << 63) - 1, "least": 1 - (1 << 63), "price": 1.5}
    values = {"colour": "grün", **numbers, "new": True, "note": None}
    assert checked_metadata(values, "row 3") == values


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"colour": "red"}, r"give a list of values, such as \['red'\]"),
        ({"size": 3}, r"give a list of values, such as \[3\]"),
        ({"size": [1 << 63]}, "no database keeps size"),
        ({"size": [[3]]}, "size must be a text"),
        ({'a"b': [1]}, "is no name for metadata"),
        (["colour"], "a filter is an object"),
    ],
)
def test_filters_that_no_engine_understands_are_refused(bad, message):
    with pytest.raises(UserError, match=message):
        checked_filter(bad)


def test_filters_pass():
    where = {"colour": ["red", None], "size": (3, 1.5), "new": []}
    assert checked_filter(where) == where
