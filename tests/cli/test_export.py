import json

import pytest

from tests.conftest import run_command
from tests.models.cases import small_model
from unibct.models.folder import save_model


@pytest.mark.slow
@pytest.mark.xdist_group("export")
@pytest.mark.usefixtures("ready_graphs")
def test_export_and_card(tmp_path, photo_folder, capsys):
    save_model(small_model(), tmp_path / "m")
    assert run_command("export", tmp_path / "m", "--to", "onnx") == 0
    assert "agrees with the model on 1,000 images" in capsys.readouterr().out
    options = ["--int8", "--data", photo_folder, "--old", tmp_path / "m", "--json"]
    assert run_command("export", tmp_path / "m", *options) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["file"] == "model.int8.onnx"
    assert printed["loss"]["gallery"] == "old"
    assert run_command("card", tmp_path / "m") == 0
    assert "`model.int8.onnx`" in (tmp_path / "m" / "MODEL_CARD.md").read_text()


def test_errors_take_one_line(tmp_path, capsys):
    save_model(small_model(), tmp_path / "m")
    for line in (
        ["export", tmp_path / "m", "--to", "tflite"],
        ["export", tmp_path / "nothing"],
        ["export", tmp_path / "m", "--int8"],
        ["export", tmp_path / "m", "--images", "some.txt"],
        ["card", tmp_path],
    ):
        assert run_command(*line) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
