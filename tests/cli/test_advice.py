import json

import pytest

from tests.conftest import TINY_OPTIONS, run_command


@pytest.mark.slow
def test_advise_prints_text_or_json_and_refuses_in_one_line(trained_folder, photo_folder, capsys):
    command = [
        "advise", photo_folder, "--old", trained_folder / "old", "--device", "cpu",
        "--images", trained_folder / "split/new.txt", *TINY_OPTIONS,
    ]  # fmt: skip
    capsys.readouterr()
    assert run_command(*command, "--gallery", photo_folder, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["scenario"]["scenarios"] == ["open-class"]
    assert values["costs"]["backfill"]["what"] == "embed 144 gallery images again"
    assert run_command(*command, "--gallery", "1000") == 0
    text = capsys.readouterr().out
    assert "scenario    open-class" in text
    assert "$ unibct train" in text
    assert run_command(*command, "--gallery", "0") == 2
    assert capsys.readouterr().err.count("\n") == 1
