from tests.gallery.toys import toy_images
from unibct.gallery.row_types import row_type, searchable_kinds


def row_types(gallery):
    state = gallery.folder.state
    return [row_type(state.makers[kind], state.standing) for kind in state.makers]


def test_rows_are_older_mapped_or_own(upgraded, forward_map):
    assert row_types(upgraded) == ["older", "own"]
    upgraded.backfill(map_folder=forward_map)
    assert row_types(upgraded) == ["older", "own", "mapped"]


def test_a_model_searches_its_own_rows_and_those_it_may(upgraded):
    state = upgraded.folder.state
    old, new = state.makers
    assert searchable_kinds(state, state.standing) == [old, new]
    upgraded.add(toy_images(per_class=1, first=20))
    upgraded.rollback()
    state = upgraded.folder.state
    assert list(state.makers) == [old, new]
    assert searchable_kinds(state, state.standing) == [old]
