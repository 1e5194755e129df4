import json

import numpy as np
import pytest

from tests.conftest import run_command
from tests.models.cases import small_model
from unibct.export.graph import ExportedModel
from unibct.models.model_folder import save_model
from unibct.models.old_space import OldSpaceModel, add_projection


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


@pytest.mark.xdist_group("export")
def test_a_projection_into_the_old_space_is_exported_by_its_name(tmp_path, capsys):
    model = small_model()
    add_projection(model.network, 16, 5)
    save_model(model, tmp_path / "m")
    assert run_command("export", f"{tmp_path / 'm'}?space=old") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("model.old-space.onnx: ")
    assert "in the old model's space; agrees with the model on 1,000 images" in printed
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 1), dtype=np.uint8)
    exported = ExportedModel(tmp_path / "m" / "model.old-space.onnx").embed_pixels(pixels)
    assert exported == pytest.approx(OldSpaceModel(model).embed_pixels(pixels), abs=1e-5)
    assert run_command("export", tmp_path / "m", "--out", tmp_path / "own.onnx") == 0
    assert "?space=old' --to onnx" in capsys.readouterr().out
    assert ExportedModel(tmp_path / "own.onnx").embed_pixels(pixels).shape == (3, 16)
    assert run_command("card", tmp_path / "m") == 0
    assert "in the old model's space" in (tmp_path / "m" / "MODEL_CARD.md").read_text()


def test_errors_take_one_line(tmp_path, capsys):
    save_model(small_model(), tmp_path / "m")
    for line in (
        ["export", tmp_path / "m", "--to", "tflite"],
        ["export", tmp_path / "nothing"],
        ["export", tmp_path / "m", "--int8"],
        ["export", f"{tmp_path / 'm'}?space=old"],
        ["export", "python:tests.embedders.networks:Flattening"],
        ["export", tmp_path / "m", "--images", "some.txt"],
        ["card", tmp_path],
    ):
        assert run_command(*line) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
