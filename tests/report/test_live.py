import numpy as np
import pytest
from rich.console import Console

from unibct.benchmark.jobs import cell_folder
from unibct.benchmark.workers import Board
from unibct.report import live
from unibct.report.live import Gains, live_progress


@pytest.fixture
def board(benchmark):
    return Board(benchmark.jobs, states={job.folder: "finished" for job in benchmark.jobs})


def test_a_live_table_has_no_gain_while_the_old_model_is_trained_again(
    benchmark, results, tmp_path
):
    gains = Gains(benchmark.workspace.out)
    expected = results.gain("open-class", "none", "top-1")
    assert gains.of("open-class", "none", 1) == pytest.approx(100 * expected.values[1])
    assert np.isnan(Gains(tmp_path).of("open-class", "none", 1))


def test_in_a_pipe_each_job_that_ends_is_a_line(benchmark, board, capsys):
    jobs = {job.folder: job for job in benchmark.jobs}
    cell = jobs[cell_folder("open-class", "none", 1)]
    old = jobs["models/old-classes-seed0"]
    with live_progress(benchmark) as show:
        show(board, None)
        board.states[old.folder] = "running"
        show(board, old)
        assert capsys.readouterr().err == "", "only a job that has ended is a line"
        board.states[old.folder] = "finished"
        show(board, cell)
        board.fail(old, "Traceback\nValueError: broken")
        show(board, old)
    finished_line, failed_line = capsys.readouterr().err.splitlines()
    gain = Gains(benchmark.workspace.out).of("open-class", "none", 1)
    count = len(board.jobs)
    assert finished_line == (
        f"{count}/{count} {cell.folder}: finished, cross − old self top-1 {gain:+.1f}"
    )
    assert failed_line == f"{count - 1}/{count} {old.folder}: failed: ValueError: broken"


def test_the_live_table_shows_gains_and_states(benchmark, board):
    grid, gains = benchmark.workspace.grid, Gains(benchmark.workspace.out)
    jobs = {job.folder: job for job in board.jobs}
    running = jobs[cell_folder("open-class", "unibct-plus", 1)]
    board.states[running.folder] = "running"
    board.trained_images[running.folder] = running.work // 2
    board.rates[running.folder] = 1234.0
    board.fail(jobs[cell_folder("open-class", "procrustes", 0)], "broken")
    console = Console(record=True, width=100)
    console.print(live._table(grid, board, gains))
    console.print(live._footer(board, live._TimeLeft()))
    rows = {line.split()[0]: line for line in console.export_text().splitlines() if line.split()}
    mean = np.mean([gains.of("open-class", "none", seed) for seed in grid.seeds])
    assert f"{mean:+.1f}" in rows["none"]
    assert "(1/2) ▶50%" in rows["unibct-plus"]
    assert "failed" in rows["procrustes"]
    assert f"{running.folder} 1,234 images/s" in rows[running.folder]


def test_the_time_left_follows_the_images_that_were_trained(benchmark, monkeypatch):
    board = Board(benchmark.jobs, states={job.folder: "waiting" for job in benchmark.jobs})
    now = 1000.0
    monkeypatch.setattr("unibct.report.live.time.monotonic", lambda: now)
    time_left = live._TimeLeft()
    assert time_left.text(board) == "", "nothing is known at the start"
    first = benchmark.jobs[0]
    done, total = first.work, sum(job.work for job in benchmark.jobs)
    board.states[first.folder] = "finished"
    now += 60
    seconds = round(60 * (total - done) / done)
    assert time_left.text(board) == f", {seconds // 60}:{seconds % 60:02} left"
