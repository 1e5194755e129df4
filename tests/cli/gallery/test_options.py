import json

from tests.conftest import run_command
from unibct.cli.gallery.options import say
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
