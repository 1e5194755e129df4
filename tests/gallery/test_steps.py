import errno
import os
import shutil
import signal

import pytest

from tests.gallery.toys import toy_images
from tests.notes import Notes, show
from unibct.gallery.gallery import Gallery
from unibct.gallery.state import FINISH, REMOVE, ROLLBACK
from unibct.gallery.steps import end_interrupted_steps, undone_backfills


def reopened(gallery):
    return Gallery(gallery.folder.path)


def test_a_killed_removal_is_taken_back(toy_gallery):
    folder = toy_gallery.folder
    step = folder.save(folder.state.begun(REMOVE)).steps[-1].number
    folder.engine.supersede(folder.state.standing.searching, ["c0/0"], step)
    again = reopened(toy_gallery)
    with again.folder.writing():
        end_interrupted_steps(again.folder)
    assert again.status().as_json()["rows"] == 48
    assert again.folder.state.unfinished is None


def test_a_removal_that_passed_the_gate_goes_on_in_every_kind(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    folder = upgraded.folder
    old, new = folder.state.kinds
    gone = next(folder.engine.scan(new)).ids[0]
    step = folder.save(folder.state.begun(REMOVE, passed=True)).steps[-1].number
    folder.engine.supersede(new, [gone], step)
    again = reopened(upgraded)
    again.add(toy_images(per_class=1, first=90))
    for kind in (old, new):
        assert again.folder.engine.read(kind, [gone]).ids == ()
    assert again.verify() == []


@pytest.mark.parametrize(("action", "live"), [(ROLLBACK, [54, 0]), (FINISH, [0, 54])])
def test_a_killed_rollback_or_finish_goes_on(upgraded, action, live):
    upgraded.backfill(toy_images())
    folder = upgraded.folder
    old, new = folder.state.kinds
    folder.save(folder.state.begun(action, **({"to": 3} if action == ROLLBACK else {})))
    again = reopened(upgraded)
    again.add(toy_images(per_class=1, first=90))
    assert list(again.status().live.values()) == live
    assert again.folder.state.standing.searching == (old if action == ROLLBACK else new)
    assert again.verify() == []
    if action == FINISH:
        assert again.status().replaced == {}
        assert again.folder.engine.count(old).rows == 0


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
    assert (result.paused, result.rows) == (True, 10)
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


EVERYTHING = toy_images(per_class=40)
COMMANDS = {
    "rollback": lambda gallery: gallery.rollback(),
    "rollback of rows": lambda gallery: gallery.rollback(data=EVERYTHING),
    "abort": lambda gallery: gallery.abort(),
    "finish": lambda gallery: gallery.finish(),
    "remove": lambda gallery: gallery.remove(["c0/0", "c1/1", "c2/20"]),
}
WRITING = ("write", "supersede", "undo", "delete", "delete_superseded")


class Stops:
    """Calls ``stop`` before or after one of the places at which a gallery writes something."""

    def __init__(self, gallery, place=-1, stop=lambda: None):
        self.places = 0
        self._place, self._stop = place, stop
        folder, engine = gallery.folder, gallery.folder.engine
        for owner, names in ((engine, WRITING), (folder, ("save",))):
            for name in names:
                setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, write):
        def watched(*arguments, **options):
            self._reach()
            result = write(*arguments, **options)
            self._reach()
            return result

        return watched

    def _reach(self):
        self.places += 1
        if self.places == self._place:
            self._stop()


def picture(gallery):
    """Who searches which rows; the numbers of steps may differ."""
    folder = gallery.folder
    rows = {
        (kind, row_id, bool(mark))
        for kind in folder.engine.kinds()
        for part in folder.engine.scan(kind, vectors=False)
        for row_id, mark in zip(part.ids, part.superseded, strict=True)
    }
    return folder.state.standing, rows


@pytest.fixture
def changed_often(upgraded_twice):
    """Rows of three models, two upgrades and two backfills to go back from."""
    upgraded_twice.add(toy_images(per_class=1, first=30))
    for share in (0.4, 0.6):
        upgraded_twice.backfill(toy_images(), share=share)
    upgraded_twice.close()
    return upgraded_twice.folder.path


def killed(path, command, place):
    """Run a command in a process that is killed at a place."""
    child = os.fork()
    if child == 0:
        try:
            gallery = Gallery(path)
            Stops(gallery, place, lambda: os.kill(os.getpid(), signal.SIGKILL))
            command(gallery)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


def disk_is_full(path, command, place):
    """Run a command that cannot write from a place on."""

    def stop():
        raise OSError(errno.ENOSPC, "No space left on device")

    gallery = Gallery(path)
    Stops(gallery, place, stop)
    with pytest.raises(OSError, match="No space left"):
        command(gallery)
    gallery.close()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [killed, disk_is_full])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_was_interrupted_anywhere_is_completed_by_the_same_command(
    changed_often, tmp_path, name, stopped
):
    """With the result, and the rows, of one that was not interrupted: never of two."""
    command, copy = COMMANDS[name], tmp_path / "copy"
    shutil.copytree(changed_often, tmp_path / "whole")
    whole = Gallery(tmp_path / "whole")
    stops = Stops(whole)
    expected = (command(whole), picture(whole))
    begun = 0
    for place in range(1, stops.places):  # at the last one, the command is complete
        shutil.copytree(changed_often, copy)
        stopped(copy, command, place)
        show(notes := Notes())
        again = Gallery(copy)
        is_begun = any(not step.done and not step.undone for step in again.folder.state.steps)
        result = command(again)
        assert (result, picture(again)) == expected, f"stopped at {place} of {stops.places}"
        assert any("had been interrupted" in text for text in notes.texts) is is_begun
        assert again.verify() == []
        begun += is_begun
        again.close()
        shutil.rmtree(copy)
    assert begun >= stops.places - 3


@pytest.mark.parametrize(("to", "target"), [(None, 5), (5, 5), (3, 3)])
def test_another_request_after_an_interrupted_abort_is_done_too(changed_often, to, target):
    """An abort is a rollback to before a backfill: one to before an upgrade goes further."""
    disk_is_full(changed_often, COMMANDS["abort"], 4)
    show(notes := Notes())
    gallery = Gallery(changed_often)
    assert gallery.rollback(to).to == target
    assert notes.texts == ["step 9, rollback, had been interrupted: it is complete now"]
    assert gallery.verify() == []


def test_another_removal_after_an_interrupted_one_is_done_too(changed_often):
    disk_is_full(changed_often, COMMANDS["remove"], 11)
    gallery = Gallery(changed_often)
    assert gallery.folder.state.steps[-1].details["passed"]
    assert gallery.remove(["c3/3"]) == 1
    assert sum(gallery.status().live.values()) == 48 + 12 - 4
    assert "ids" not in gallery.folder.state.steps[-2].details
    assert gallery.verify() == []
