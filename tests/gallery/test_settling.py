import pytest

from tests.gallery.toys import toy_images
from unibct.gallery.gallery import Gallery
from unibct.gallery.settling import settle, undone_backfills
from unibct.gallery.state import FINISH, REMOVE, ROLLBACK


def reopened(gallery):
    return Gallery(gallery.folder.path)


def test_a_killed_removal_is_taken_back(toy_gallery):
    folder = toy_gallery.folder
    step = folder.save(folder.state.begun(REMOVE)).steps[-1].number
    folder.engine.supersede(folder.state.standing.searching, ["c0/0"], step)
    again = reopened(toy_gallery)
    with again.folder.writing():
        settle(again.folder)
    assert again.status().as_json()["rows"] == 48
    assert again.folder.state.unfinished is None


def test_a_removal_that_passed_the_gate_goes_on_in_every_kind(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    folder = upgraded.folder
    old, new = folder.state.makers
    gone = next(folder.engine.scan(new)).ids[0]
    step = folder.save(folder.state.begun(REMOVE, passed=True)).steps[-1].number
    folder.engine.supersede(new, [gone], step)
    again = reopened(upgraded)
    again.add(toy_images(per_class=1, first=90))
    for kind in (old, new):
        assert again.folder.engine.read(kind, [gone]).ids == ()
    assert again.verify() == []


def test_a_killed_rollback_goes_on(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    folder = upgraded.folder
    old = next(iter(folder.state.makers))
    folder.save(folder.state.begun(ROLLBACK, to=3))
    again = reopened(upgraded)
    again.add(toy_images(per_class=1, first=90))
    assert again.folder.state.standing.searching == old
    assert list(again.status().live.values()) == [54, 0]
    assert again.verify() == []


def test_a_killed_finish_goes_on(upgraded):
    upgraded.backfill(toy_images())
    folder = upgraded.folder
    folder.save(folder.state.begun(FINISH))
    again = reopened(upgraded)
    again.add(toy_images(per_class=1, first=90))
    assert again.status().replaced == {}
    assert again.folder.engine.count(next(iter(folder.state.makers))).rows == 0


def test_finished_backfills_are_not_undone(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    assert undone_backfills(upgraded.folder.state, 3) == [4]
    upgraded.finish()
    assert undone_backfills(upgraded.folder.state, 3) == []
    upgraded.backfill(toy_images(), share=0.75)
    assert undone_backfills(upgraded.folder.state, 3) == [6]


def test_nothing_is_settled_while_a_backfill_is_paused(upgraded, monkeypatch):
    (upgraded.folder.path / "pause").touch()
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 10)
    original = upgraded.folder.engine.write

    def pausing(*arguments, **names):
        original(*arguments, **names)
        upgraded.pause()

    monkeypatch.setattr(upgraded.folder.engine, "write", pausing)
    result = upgraded.backfill(toy_images())
    assert result.paused
    assert result.rows == 10
    monkeypatch.undo()
    upgraded.add(toy_images(per_class=1, first=90))
    assert upgraded.folder.state.unfinished is not None
    assert upgraded.backfill(toy_images()).step == result.step
    assert upgraded.folder.state.unfinished is None


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_counts_after_a_step_are_noted(upgraded, share):
    upgraded.backfill(toy_images(), share=share)
    noted = upgraded.folder.state.steps[-1].details["rows_after"]
    counts = {kind: upgraded.folder.engine.count(kind) for kind in noted}
    assert noted == {kind: [count.rows, count.live] for kind, count in counts.items()}
