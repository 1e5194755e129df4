import json
from unittest.mock import Mock

import pytest

from tests.conftest import run_command
from unibct import progress
from unibct.cli.gallery.options import opened_gallery, say
from unibct.gallery.engines import ENGINES


def test_the_help_lists_commands_and_engines(capsys):
    assert run_command("gallery", "--help") == 0
    text = capsys.readouterr().out
    commands = "create add search upgrade backfill rollback remove index copy delete status verify"
    for word in (*commands.split(), *ENGINES):
        assert word in text


def test_results_are_for_machines_or_for_people(capsys):
    say(True, {"rows": 3, "name": "grün"}, "three rows")
    assert json.loads(capsys.readouterr().out) == {"rows": 3, "name": "grün"}
    say(False, {}, "three rows")
    assert capsys.readouterr().out == "three rows\n"


def test_no_progress_bar_stays_if_a_gallery_cannot_be_closed(monkeypatch, tmp_path):
    stuck = Mock()
    stuck.return_value.close.side_effect = OSError("no space left")
    monkeypatch.setattr("unibct.gallery.gallery.Gallery", stuck)
    with pytest.raises(OSError, match="no space left"), opened_gallery(tmp_path, "cpu"):
        progress.note("seen on standard error")
        receiver = progress._RECEIVER.get()
    assert receiver is not progress._RECEIVER.get()
