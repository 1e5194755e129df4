import json

import pytest

from unibct.errors import UserError
from unibct.gallery.state import (
    ADD,
    COUNT_ORDER,
    CREATE,
    REMOVE,
    ROWS_AFTER,
    STEPS_IN_FULL,
    UPGRADE,
    Access,
    GalleryState,
    RowKind,
    Standing,
    read_state,
    write_state,
)

OLD = RowKind("a" * 32, "old", 8, "folder", "", "a" * 32)
NEW = RowKind("b" * 32, "new", 8, "folder", "", "b" * 32)
MAPPED = RowKind("c" * 32, "map", 8, "map", "maps/f", "b" * 32)


@pytest.fixture
def state():
    kinds = {row_kind.fingerprint: row_kind for row_kind in (OLD, NEW, MAPPED)}
    standing = Standing(NEW.fingerprint, {OLD.fingerprint: Access("d1")})
    return GalleryState("g", "embedded", "", kinds, standing)


def test_a_state_comes_back_as_it_was_written(state, tmp_path):
    state = state.begun(CREATE, known=3).changed_step(1, done=True).begun(UPGRADE)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    words = ["format", "digest", "name", "engine", "address", "makers", "standing", "steps"]
    assert list(json.loads((tmp_path / "state.json").read_text())) == words, "as ever"


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
    assert all(state.searchable(kind) for kind in state.kinds)
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
    assert GalleryState("g", "embedded", "", state.kinds, standing).is_forced


def done(state, action, **details):
    return state.begun(action).changed_step(state.next_number, done=True, details=details)


def test_adds_and_removals_that_are_long_past_are_put_together(state, tmp_path):
    state = done(state, CREATE, known=3)
    for number in range(50):
        state = done(state, ADD, source="x", added=2, present=1, **{ROWS_AFTER: {"k": [number, 0]}})
        state = done(state, REMOVE, rows=1)
    state = done(state, UPGRADE, model="n")
    upgrade = state.steps[-1]
    for number in range(1000):
        state = done(state, ADD, source=f"file {number}", added=1, **{COUNT_ORDER: number})
    assert len(state.steps) == STEPS_IN_FULL + 1 + 2 + 1 + 1  # create, two sums, upgrade, a sum
    created, adds, removals, upgraded, later = state.steps[:-STEPS_IN_FULL]
    assert (created.number, adds.number, removals.number) == (1, 2, 3)
    assert adds.details["source"] == "x"
    assert [adds.details[name] for name in ("steps", "added", "present")] == [50, 100, 50]
    assert adds.details[ROWS_AFTER] == {"k": [49, 0]}, "that of the last one, for verify"
    assert [removals.details[name] for name in ("steps", "rows")] == [50, 50]
    assert upgraded == state.step(102) == upgrade
    assert (later.details["steps"], later.details[COUNT_ORDER]) == (900, 899)
    assert "source" not in later.details
    numbers = [step.number for step in state.steps]
    assert numbers == sorted(set(numbers))
    assert state.next_number == 1 + 100 + 1 + 1000 + 1
    with pytest.raises(UserError, match="no step 4; this gallery has 1102"):
        state.step(4)
    write_state(tmp_path, state)
    assert (tmp_path / "state.json").stat().st_size < 500 * len(state.steps)
    assert read_state(tmp_path) == state


@pytest.mark.parametrize(
    "remark",
    [
        {"undone": True},
        {"done": False},
        {"details": {"interrupted": True}},
        {"details": {"restored": True}},
    ],
)
def test_steps_about_which_there_is_more_to_say_stay(state, remark):
    state = done(done(done(state, CREATE), ADD, added=1), ADD, added=1)
    state = done(state.changed_step(2, **remark), ADD, added=1)
    noted = state.step(2)
    for _ in range(STEPS_IN_FULL):
        state = done(state, ADD, added=1)
    assert state.step(2) == noted
    assert state.step(3).details["steps"] == 2


def test_a_state_of_an_earlier_version_is_read(state, tmp_path):
    write_state(tmp_path, state)
    path = tmp_path / "state.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    assert read_state(tmp_path) == state
    path.write_text(path.read_text().replace('"format": 1', '"format": 3'))
    with pytest.raises(UserError, match="another version of unibct"):
        read_state(tmp_path)
