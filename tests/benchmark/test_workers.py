import pytest

from tests.conftest import TINY_OPTIONS, run_command
from unibct.benchmark.jobs import Job
from unibct.benchmark.workers import Board, WorkerPool


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_job_only_and_is_replaced(grid, tmp_path, capsys):
    arguments = [
        "benchmark", grid.data, "--test", grid.test, "--scenarios", "extended-data,open-class",
        "--methods", "none", "--seeds", "0", "--chain", "none", "--workers", "1",
        "--device", "cpu", "--out", str(tmp_path), "--set", "warm_start=true",
        *TINY_OPTIONS,
    ]  # fmt: skip
    started = WorkerPool._start

    def killed_at_first(pool):
        worker = started(pool)
        if not killed:
            killed.append(worker.process.pid)
            worker.process.kill()
        return worker

    killed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "_start", killed_at_first)
        assert run_command(*arguments) == 2
    error = capsys.readouterr().err
    assert "1 of 6 jobs failed and 1 more were left out" in error
    assert "models/old-images-seed0: its process ended with code -9" in error
    assert "| none | within noise" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert run_command(*arguments) == 0


def test_a_worker_that_dies_with_nothing_to_do_is_replaced(benchmark):
    job = benchmark.jobs[0]  # finished: a worker answers at once
    with WorkerPool(benchmark.workspace, 1, 1) as pool:
        assert pool.assign(job)
        worker = pool.busy[0]
        assert not pool.assign(job)  # it is the only one
        assert worker.pipe.recv() == ("finished", None)
        worker.job = None
        worker.process.kill()
        worker.process.join()
        assert pool.assign(job)
        assert pool.busy[0].process.pid != worker.process.pid
        assert pool.busy[0].pipe.recv() == ("finished", None)


def test_a_worker_that_dies_fails_its_job_only():
    jobs = [Job("a", 0, ()), Job("b", 0, (), needs=("a",)), Job("c", 0, ())]
    board = Board(jobs, states={job.folder: "waiting" for job in jobs})
    board.fail(jobs[0], "killed")
    assert board.states == {"a": "failed", "b": "left out", "c": "waiting"}
    assert board.next_ready() is jobs[2]


def test_a_job_waits_for_a_warm_up_but_does_not_need_it():
    jobs = [Job("free", 0, ()), Job("cell", 0, (), after=("free", "elsewhere"))]
    board = Board(jobs, states={"free": "running", "cell": "waiting"})
    assert board.next_ready() is None
    board.fail(jobs[0], "killed")
    assert board.states["cell"] == "waiting"
    assert board.next_ready() is jobs[1]
