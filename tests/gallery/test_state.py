import json

import pytest

from unibct.errors import UserError
from unibct.gallery.state import (
    ADD,
    CREATE,
    UPGRADE,
    Access,
    GalleryState,
    RowMaker,
    Standing,
    read_state,
    write_state,
)

OLD = RowMaker("a" * 32, "old", 8, "folder", "", "a" * 32)
NEW = RowMaker("b" * 32, "new", 8, "folder", "", "b" * 32)
MAPPED = RowMaker("c" * 32, "map", 8, "map", "maps/f", "b" * 32)


@pytest.fixture
def state():
    makers = {maker.fingerprint: maker for maker in (OLD, NEW, MAPPED)}
    standing = Standing(NEW.fingerprint, {OLD.fingerprint: Access("d1")})
    return GalleryState("g", "embedded", "", makers, standing)


def test_a_state_comes_back_as_it_was_written(state, tmp_path):
    state = state.begun(CREATE, known=3).changed_step(1, done=True).begun(UPGRADE)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


def test_a_state_that_was_changed_by_hand_is_refused(state, tmp_path):
    write_state(tmp_path, state)
    content = json.loads((tmp_path / "state.json").read_text())
    content["standing"]["searching"] = OLD.fingerprint
    (tmp_path / "state.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="changed by hand"):
        read_state(tmp_path)


def test_a_folder_without_a_state_is_no_gallery(tmp_path):
    with pytest.raises(UserError, match="is not a gallery"):
        read_state(tmp_path)


def test_own_mapped_and_certified_rows_may_be_searched(state):
    assert [state.searchable(kind) for kind in (OLD, NEW, MAPPED)] == [False] * 3  # no fingerprints
    assert all(state.searchable(kind) for kind in state.makers)
    assert not state.searchable("d" * 32)


def test_steps_are_numbered_and_the_unfinished_one_is_found(state):
    state = state.begun(CREATE).changed_step(1, done=True).begun(ADD, source="x")
    assert [step.number for step in state.steps] == [1, 2]
    assert state.unfinished == state.step(2)
    state = state.changed_step(2, done=True, details={"added": 4})
    assert state.unfinished is None
    assert state.step(2).details == {"source": "x", "added": 4}
    with pytest.raises(UserError, match="no step 3"):
        state.step(3)


def test_force_shows(state):
    assert not state.is_forced
    standing = Standing(NEW.fingerprint, {OLD.fingerprint: Access("", forced=True)})
    assert GalleryState("g", "embedded", "", state.makers, standing).is_forced
