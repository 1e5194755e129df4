"""Processes killed while they write, and servers that stop, on every engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gallery.conftest import REAL, some_rows
from unibct.errors import UserError
from unibct.gallery.engines import Count, open_engine
from unibct.gallery.rows import changed_rows

KIND = "a" * 32
ROOT = Path(__file__).parents[3]
KILLS = 3  # measurements/gallery_kills.py kills more often


@pytest.mark.slow
@pytest.mark.parametrize("place", REAL, indirect=True)
def test_no_acknowledged_row_is_lost_by_a_kill(place):
    name, where = place
    script = ROOT / "measurements/gallery_kills.py"
    options = ["--at", where.address, "--folder", where.folder, "--kills", KILLS]
    command = [str(part) for part in (sys.executable, script, name, *options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{KILLS} kills" in done.stdout
    assert "none lost, doubled or torn" in done.stdout


@pytest.mark.parametrize("place", REAL[1:], indirect=True)
def test_a_server_that_stops_is_named_and_goes_on_when_it_is_back(place, servers):
    """The same object goes on, and so does another one."""
    name, where = place
    engine = open_engine(name, where)
    engine.create()
    engine.add_kind(KIND, 8)
    engine.write(KIND, some_rows(KIND, ["a0", "a1"]))
    server = servers(name)
    server.stop()
    for request in (
        lambda: engine.write(KIND, some_rows(KIND, ["b0"])),
        lambda: engine.undo(1),
        lambda: engine.count(KIND),
        lambda: open_engine(name, where).kinds(),
    ):
        with pytest.raises(UserError, match=r"cannot reach .*; start the server") as caught:
            request()
        assert where.address in str(caught.value)
        assert "\n" not in str(caught.value)
    server.start()
    engine.write(KIND, some_rows(KIND, ["b0"], seed=1))
    assert engine.count(KIND) == Count(3, 3)
    other = open_engine(name, where)
    assert changed_rows(KIND, other.read(KIND, ["a0", "a1", "b0"])) == []
    other.close()
    engine.destroy()
    engine.close()
