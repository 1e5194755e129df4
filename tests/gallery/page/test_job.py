import threading

from unibct.errors import UserError
from unibct.gallery.page.job import Job


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
        raise RuntimeError("out of paper")

    assert ended(Job("backfill", refuse)) == ("failed", "no images")
    assert not caplog.records
    assert ended(Job("rollback", break_down)) == ("failed", "RuntimeError: out of paper")
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
