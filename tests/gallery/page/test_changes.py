import threading
from dataclasses import replace

import pytest

from tests.gallery.conftest import broken
from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery import backfill
from unibct.gallery.backfill import PAUSE_FILE, Backfilled
from unibct.gallery.gallery_folder import ONLY_STORED
from unibct.gallery.page.answers import BackfillBody
from unibct.gallery.page.changes import BusyError, GalleryChanges, Job, backfill_text, rollback_text
from unibct.gallery.rollback import RolledBack


def ended(job: Job) -> tuple[str, str]:
    job.start()
    job.wait()
    return job.answer.state, job.answer.message


def test_a_job_says_how_far_it_is():
    begun, going_on = threading.Event(), threading.Event()

    def work(job):
        with job.task("backfill", 10, "rows", done=2) as advance:
            advance(3)
            begun.set()
            assert going_on.wait(10)
            advance(5)
        job.note("nearly there")
        return "done", "all of it"

    job = Job("backfill", work)
    assert job.is_running
    assert job.answer.total is None
    job.start()
    assert begun.wait(10)
    assert (job.answer.done, job.answer.total, job.answer.state) == (5, 10, "running")
    going_on.set()
    job.wait()
    assert (job.answer.done, job.answer.state, job.answer.message) == (10, "done", "all of it")
    assert not job.is_running


def test_a_failure_is_told_in_one_line(caplog):
    def refuse(job):
        raise UserError("no images")

    def break_down(job):
        raise RuntimeError("out of certificate")

    assert ended(Job("backfill", refuse)) == ("failed", "no images")
    assert not caplog.records
    assert ended(Job("rollback", break_down)) == ("failed", "RuntimeError: out of certificate")
    assert "the rollback failed" in caplog.text


def test_a_pause_is_heeded_between_two_pieces_of_work():
    paused_at = []

    def work(job):
        job.pause_work = lambda: paused_at.append(job.answer.done)
        with job.task("backfill", 4, "rows") as advance:
            advance(1)
            job.pause_wanted.set()
            assert paused_at == []
            advance(1)
        with job.task("backfill", 4, "rows"):
            return "paused", ""

    assert ended(Job("backfill", work)) == ("paused", "")
    assert paused_at == [2, 0]


LATER = toy_images(per_class=1, first=30)


@pytest.fixture
def changes(upgraded):
    made = GalleryChanges(upgraded.folder.path, toy_images())
    yield made
    made.stop()


def waited(changes):
    changes._job.wait()
    return changes.job


def test_a_backfill_and_the_way_back(changes, upgraded):
    assert changes.job is None
    assert changes.backfill(BackfillBody(share=0.5)).action == "backfill"
    job = waited(changes)
    assert (job.state, job.done, job.total) == ("done", 24, 24)
    assert job.message.startswith("24 rows embedded again; 24 of 48 rows are now")
    assert changes.rollback(4).action == "rollback"
    assert waited(changes).message.startswith("The gallery is as before step 4: ")
    changes.rollback()
    assert "old_model searches" in waited(changes).message
    assert list(upgraded.status().live.values()) == [48, 0]
    with pytest.raises(BusyError, match="no upgrade and no backfill"):
        changes.rollback()
    with pytest.raises(BusyError, match="no rows of older models are left"):
        changes.backfill(BackfillBody())


def test_a_pause_before_the_first_batch_is_heeded(changes, upgraded, monkeypatch):
    ordered = backfill.ordered_rows

    def pausing(*arguments):
        changes.pause()
        return ordered(*arguments)

    monkeypatch.setattr(backfill, "ordered_rows", pausing)
    changes.backfill(BackfillBody())
    job = waited(changes)
    assert (job.state, job.done, job.total) == ("paused", 0, 48)
    assert "press Backfill to continue" in job.message
    with pytest.raises(BusyError, match="paused already"):
        changes.pause()
    monkeypatch.setattr(backfill, "ordered_rows", ordered)
    changes.backfill(BackfillBody())
    assert waited(changes).state == "done"
    assert list(upgraded.status().live.values()) == [0, 48]


def test_one_change_at_a_time(changes, upgraded, monkeypatch):
    ordered, refused = backfill.ordered_rows, []

    def asking(*arguments):
        for ask in (lambda: changes.backfill(BackfillBody()), changes.rollback):
            with pytest.raises(BusyError, match="a backfill is running") as error:
                ask()
            refused.append(error)
        return ordered(*arguments)

    monkeypatch.setattr(backfill, "ordered_rows", asking)
    changes.backfill(BackfillBody())
    assert waited(changes).state == "done"
    assert len(refused) == 2
    with upgraded.folder.writing(), pytest.raises(BusyError, match="another process is writing"):
        changes.rollback()


def test_a_backfill_of_another_process_is_paused(upgraded):
    changes = GalleryChanges(upgraded.folder.path)
    with pytest.raises(BusyError, match="no backfill is under way"):
        changes.pause()
    state = upgraded.folder.state
    upgraded.folder.save(state.begun("backfill", model=state.standing.searching))
    changes.pause()
    assert (upgraded.folder.path / PAUSE_FILE).exists()


def test_what_cannot_be_done_is_refused(upgraded, changes):
    with pytest.raises(BusyError, match="serve the gallery with images"):
        GalleryChanges(upgraded.folder.path).backfill(BackfillBody())
    with pytest.raises(BusyError, match=r"cannot go back to step 1; choose one of: 3 \(upgrade\)"):
        changes.rollback(1)


def test_a_model_of_which_only_embeddings_are_known_is_given_no_images(upgraded):
    upgraded.add(LATER)
    makers = dict(upgraded.folder.state.kinds)
    old = next(iter(makers))
    makers[old] = replace(makers[old], source=ONLY_STORED)
    upgraded.folder.save(replace(upgraded.folder.state, kinds=makers))
    changes = GalleryChanges(upgraded.folder.path, LATER)
    changes.rollback()
    kept = "6 rows of newer models are kept, but it cannot search them"
    assert waited(changes).message.endswith(kept)


@pytest.fixture
def stopped(upgraded):
    """A gallery with a rollback that was stopped before it made the later rows again."""
    upgraded.add(LATER)
    with broken("rollback._make_rows"):
        upgraded.rollback(data=LATER)
    return upgraded


@pytest.mark.parametrize("to", [None, 3])
def test_a_rollback_that_was_stopped_while_it_made_rows_again_goes_on(stopped, to):
    changes = GalleryChanges(stopped.folder.path, LATER)
    changes.rollback(to)
    assert waited(changes).message.endswith("6 rows were embedded by it from their images")
    assert stopped.status().unsearchable == 0
    assert stopped.verify() == []
    with pytest.raises(BusyError, match="no upgrade and no backfill"):
        changes.rollback(to)


def test_a_rollback_that_another_process_has_continued_goes_no_further_back(stopped, monkeypatch):
    changes = GalleryChanges(stopped.folder.path, LATER)
    opened = changes._opened

    def late(job):
        stopped.rollback(data=LATER)
        return opened(job)

    monkeypatch.setattr(changes, "_opened", late)
    changes.rollback()
    assert waited(changes).state == "failed"
    assert stopped.status().unsearchable == 0


def test_results_in_words():
    done = Backfilled(4, 0, 1, 2, missing=1, first_missing="a")
    assert backfill_text(done).endswith("1 rows have no image, first 'a'")
    assert rollback_text(RolledBack(3, "f", 2, 5, "x"), "old") == (
        "The gallery is as before step 3: old searches; 2 rows were embedded by it from their "
        "images; 5 rows of newer models are kept, but it cannot search them"
    )
