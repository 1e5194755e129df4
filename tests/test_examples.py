"""The pieces in other people's code: every example in docs/examples runs, and is short."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.gallery.oracles import NEW_ORACLE, OLD_ORACLE
from tests.torchvision_operators import declare_torchvision_operators

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.slowest
def test_a_hand_written_loop_makes_a_compatible_model(capsys):
    names = runpy.run_path(str(EXAMPLES / "own_training_loop.py"))
    gains = {criterion.metric: criterion.difference for criterion in names["result"].criteria}
    assert gains["top-1"] > 0
    assert "top-1: +" in capsys.readouterr().out


@pytest.mark.slowest
def test_a_loss_of_pytorch_metric_learning_and_structural_prototypes(capsys):
    names = runpy.run_path(str(EXAMPLES / "metric_learning_loss.py"))
    gains = {criterion.metric: criterion.difference for criterion in names["result"].criteria}
    assert gains["top-1"] > 0.02
    assert capsys.readouterr().out.strip().endswith(names["result"].verdict)


@pytest.mark.slowest
def test_a_backbone_of_hugging_face():
    declare_torchvision_operators()
    losses = runpy.run_path(str(EXAMPLES / "hugging_face_backbone.py"))["losses"]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.slowest
def test_two_npy_files(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(120), 10)
    true = rng.normal(size=(120, 16))[labels]
    old, new = (true + noise * rng.normal(size=true.shape) for noise in (1.2, 0.2))
    rotation = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    for name, array in (("old", old), ("new", new @ rotation), ("labels", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.setattr(sys, "argv", ["two_npy_files.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "two_npy_files.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "as it is: not compatible" in shown
    assert "mapped: compatible" in shown


@pytest.mark.slowest
def test_names_survive_an_upgrade_and_a_rollback(tmp_path, capsys):
    names = runpy.run_path(str(EXAMPLES / "keep_names.py"))
    counts = names["main"](OLD_ORACLE, NEW_ORACLE, tmp_path)
    assert len(counts) == 5
    for kind in (0, 1):  # at a FAR, and by old scores and the old threshold
        naming, upgrade, photographs, half, rollback = (stage[kind] for stage in counts)
        assert naming.right < upgrade.right < photographs.right <= half.right
        for later in (upgrade, photographs, half):
            assert later.wrong < naming.wrong
            assert later.lost < naming.lost
        assert rollback == naming
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 7
    assert shown[2].split()[:3] == ["naming", "1272", "0"]
