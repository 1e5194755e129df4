import pytest
import torch

from tests.training.interruption import stopped_before_epoch
from tests.training.recipes import RECIPE
from unibct.models.folder import load_model
from unibct.training import loop
from unibct.training.checkpoints import find_checkpoint, read_checkpoint
from unibct.training.train import train

OPTIONS = {"validation": 0.25, "device": "cpu"}


@pytest.fixture
def second_is_best(monkeypatch):
    """Runs whose second epoch has the best recall."""

    def scripted(context, state):
        return {"recall_at_1": (0.5, 0.9, 0.7)[state.epoch], "pixel_recall_at_1": 0.4}

    monkeypatch.setattr(loop, "validated", scripted)


@pytest.mark.slow
@pytest.mark.parametrize("killed_before_the_copy", [False, True])
def test_the_best_state_outlives_a_stop(
    glyph_classes, tmp_path, monkeypatch, second_is_best, killed_before_the_copy
):
    out = tmp_path / "m"
    with monkeypatch.context() as patch:
        if killed_before_the_copy:
            patch.setattr(loop, "keep_best", lambda context, state: None)
        with stopped_before_epoch(2):
            train(glyph_classes, RECIPE, out, **OPTIONS)
    kept = [path.name for path in out.glob(".best-*")]
    assert kept == ([] if killed_before_the_copy else [".best-00001"])
    second = read_checkpoint(find_checkpoint(out))
    model = train(glyph_classes, RECIPE, out, resume=True, device="cpu")
    best = load_model(out / "best")
    weights = {f"network.{name}": tensor for name, tensor in best.network.state_dict().items()}
    for name, tensor in weights.items():
        assert torch.equal(tensor, second.tensors[name]), name
    assert torch.equal(best.class_weights, second.class_tensors["class_weights"])
    assert best.fingerprint != model.fingerprint
    assert best.class_names == model.class_names
    assert list(out.glob(".best-*")) == []
