import logging
import re
import subprocess
import sys

import pytest

from unibct.progress import Bars, Both, Lines, Silent, clock, terminal_progress


def test_lines_tell_rate_and_time_left(capsys):
    with Lines(every=0).task("training", 100, done=20) as advance:
        advance(30)
        advance(50)
    first, _, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"training: 50/100 images, [\d,]+ images/s, \d+:\d\d left", first)
    assert re.fullmatch(r"training: 100 images in \d+:\d\d, [\d,]+ images/s", last)


def test_a_status_stays_in_the_lines_and_beside_the_bar(capsys):
    def report(progress):
        with progress.task("training", 30) as advance:
            advance(10)
            advance(0, "recall@1 [b]40.0 %")
            advance(10)
            advance(10)

    report(Lines(every=0))
    lines = capsys.readouterr().err.splitlines()
    assert [line.endswith(", recall@1 [b]40.0 %") for line in lines] == [False, *[True] * 4]
    assert lines[-1].startswith("training: 30 images in ")
    with Bars(overall=30) as bars:
        report(bars)
        assert [task.fields["status"] for task in bars._bars.tasks] == ["", "recall@1 [b]40.0 %"]
    assert "recall@1 [b]40.0 %" in capsys.readouterr().err
    report(Silent())
    report(Both(Lines(every=0), Lines(every=0)))
    assert capsys.readouterr().err.count("recall@1") == 8


def test_bars_add_up_to_an_overall_one(capsys):
    with Bars(overall=100) as bars:
        with bars.task("one", 60) as advance:
            advance(60)
        with bars.task("two", 120, done=60, weight=1 / 3) as advance:
            advance(60)
        with bars.task("done before", 5, done=5, weight=0.0):
            pass
        bars.note("kept")
        tasks = bars._bars.tasks
        assert [task.completed for task in tasks] == [100, 60, 120, 5]
        assert all(task.finished for task in tasks)
    assert "kept" in capsys.readouterr().err


def test_the_terminal_decides(monkeypatch):
    with terminal_progress() as progress:
        assert isinstance(progress, Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal_progress(overall=3) as progress:
        assert isinstance(progress, Bars)
    with Silent().task("x", 1) as advance:
        advance(1)


def test_names_are_not_read_as_markup(capsys):
    with Bars() as bars:
        bars.note("left out a[/b].png, x[red].png")
    assert "a[/b].png, x[red].png" in capsys.readouterr().err


LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)")


def logged(path):
    """The messages in a log file, each of which has the time before it."""
    return [LINE.fullmatch(line)[1] for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_go_to_a_log_file_with_the_time(tmp_path, capsys):
    path = tmp_path / "logs" / "rank.log"
    lines = Lines(log=path)
    assert not path.parent.exists()
    lines.note("100 % of é {x}")
    with Lines(log=path).task("training", 3) as advance:
        advance(3)
    first, second = logged(path)
    assert first == "100 % of é {x}"
    assert second.startswith("training: 3 images in 0:00, ")
    assert capsys.readouterr().err == ""


def test_a_job_that_is_refused_before_it_makes_its_folder_leaves_no_log(tmp_path):
    out = tmp_path / "model"
    lines = Lines(log=out / "logs" / "rank.log", log_after=out)
    lines.note("one")
    lines.note("two")
    assert not out.exists()
    out.mkdir()
    lines.note("three")
    lines.note("four")
    assert logged(out / "logs" / "rank.log") == ["one", "two", "three", "four"]


def test_lines_can_go_to_a_file_and_to_the_terminal(tmp_path, capsys):
    Lines(log=tmp_path / "a.log", stderr=True).note("one")
    assert capsys.readouterr().err == "one\n"
    assert logged(tmp_path / "a.log") == ["one"]


def test_an_application_takes_the_lines_up_with_its_own_handlers(caplog, capsys):
    caplog.set_level(logging.INFO, "unibct")
    with Lines(stderr=False).task("training", 5, done=2) as advance:
        advance(3)
    Lines(stderr=False).note("100 %s")
    assert [record.name for record in caplog.records] == ["unibct.progress"] * 2
    assert [record.levelname for record in caplog.records] == ["INFO"] * 2
    assert caplog.messages[0].startswith("training: 5 images in 0:00, ")
    assert caplog.messages[1] == "100 %s"
    assert capsys.readouterr().err == ""


def test_an_application_that_asks_for_warnings_only_gets_no_lines(caplog, capsys):
    caplog.set_level(logging.WARNING, "unibct")
    Lines().note("one")
    assert caplog.messages == []
    assert capsys.readouterr().err == "one\n"


def test_no_line_comes_twice(tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO, "unibct")
    for text in ("one", "two"):
        first, second = Lines(), Lines(log=tmp_path / "a.log")
        with first.task("outer", 1), second.task("inner", 1):
            first.note(text)
            second.note(f"{text} logged")
    assert capsys.readouterr().err == "one\ntwo\n"
    assert logged(tmp_path / "a.log") == ["one logged", "two logged"]
    assert caplog.messages == ["one", "one logged", "two", "two logged"]


def test_no_handler_is_added_to_a_logger(tmp_path, capsys):
    before = list(logging.getLogger().handlers)
    with Lines(log=tmp_path / "a.log", stderr=True).task("training", 1) as advance:
        advance(1)
        assert logging.getLogger("unibct.progress").handlers == []
        assert logging.getLogger("unibct").handlers == []
        assert logging.getLogger().handlers == before
    code = (
        "import logging, unibct.progress\n"
        "unibct.progress.Silent().note('silent')\n"
        "assert logging.getLogger().handlers == []\n"
        "unibct.progress.Lines(stderr=False).note('not configured')\n"
        "unibct.progress.Lines().note('as before')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "as before\n")


@pytest.mark.parametrize(("rank", "printed"), [("0", "kept\n"), ("1", "")])
def test_each_process_of_torchrun_has_its_own_log(rank, printed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    with terminal_progress(logs=tmp_path) as progress:
        progress.note("kept")
    assert logged(tmp_path / f"rank-0000{rank}.log") == ["kept"]
    assert capsys.readouterr().err == printed
    with terminal_progress() as progress:
        progress.note("not logged")
    assert [p.name for p in tmp_path.iterdir()] == [f"rank-0000{rank}.log"]


def test_bars_and_a_log_file_show_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal_progress(logs=tmp_path) as progress:
        assert isinstance(progress, Both)
        progress.note("kept")
        with progress.task("training", 1) as advance:
            advance(1)
    assert logged(tmp_path / "rank-00000.log")[0] == "kept"
    assert "kept" in capsys.readouterr().err


def test_durations():
    assert [clock(s) for s in (0, 59.6, 61, 3600, 7325)] == [
        "0:00",
        "1:00",
        "1:01",
        "1:00:00",
        "2:02:05",
    ]
