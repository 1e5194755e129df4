import re
import sys

from unibct.progress import Bars, Lines, Silent, terminal_progress


def test_lines_tell_rate_and_time_left(capsys):
    with Lines(every=0).task("training", 100, done=20) as advance:
        advance(30)
        advance(50)
    first, _, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"training: 50/100 images, [\d,]+ images/s, \d+:\d\d left", first)
    assert re.fullmatch(r"training: 100 images in \d+:\d\d, [\d,]+ images/s", last)


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
