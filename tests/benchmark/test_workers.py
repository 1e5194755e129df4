import pytest

from tests.conftest import TINY
from unibct import cli
from unibct.benchmark.jobs import Job
from unibct.benchmark.workers import Board, Crew


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_job_only_and_is_replaced(grid, tmp_path, capsys):
    arguments = [
        "benchmark", grid.data, "--test", grid.test, "--scenarios", "extended-data,open-class",
        "--methods", "none", "--seeds", "0", "--chain", "none", "--workers", "1",
        "--device", "cpu", "--out", str(tmp_path), "--set", "warm_start=true",
        *[a for item in TINY for a in ("--set", item)],
    ]  # fmt: skip
    started = Crew._start

    def killed_at_first(crew):
        worker = started(crew)
        if not killed:
            killed.append(worker.process.pid)
            worker.process.kill()
        return worker

    killed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Crew, "_start", killed_at_first)
        with pytest.raises(SystemExit):
            cli.main(arguments)
    error = capsys.readouterr().err
    assert "1 of 6 jobs failed and 1 more were left out" in error
    assert "models/old-images-seed0: its process ended with code -9" in error
    assert "| none | not compatible" in (tmp_path / "report.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 0


def test_a_worker_that_dies_with_nothing_to_do_is_replaced(finished):
    benchmark, _ = finished
    job = benchmark.jobs[0]  # finished: a worker answers at once
    with Crew(benchmark.workspace, 1, 1) as crew:
        assert crew.give(job)
        worker = crew.busy[0]
        assert not crew.give(job)  # it is the only one
        assert worker.pipe.recv() == ("finished", None)
        worker.job = None
        worker.process.kill()
        worker.process.join()
        assert crew.give(job)
        assert crew.busy[0].process.pid != worker.process.pid
        assert crew.busy[0].pipe.recv() == ("finished", None)


def test_a_worker_that_dies_fails_its_job_only():
    jobs = [Job("a", 0, ()), Job("b", 0, (), needs=("a",)), Job("c", 0, ())]
    board = Board(jobs, states={job.folder: "waiting" for job in jobs})
    board.fail(jobs[0], "killed")
    assert board.states == {"a": "failed", "b": "left out", "c": "waiting"}
    assert board.ready() is jobs[2]
