import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import TINY
from unibct.errors import UserError
from unibct.training import train, trainer
from unibct.training.recipe import load_recipe
from unibct.training.tracking import TensorBoard

RECIPE = load_recipe("glyphs", TINY)


def curve(folder, name):
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]


def test_a_run_writes_its_curves_and_goes_on_with_them(glyph_classes, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_TRACK_EVERY", 1)
    few = glyph_classes.select(range(80))
    options = {"tensorboard": tmp_path / "tb", "device": "cpu"}
    epoch = trainer.Trainer._epoch

    def stopping(self, *arguments):
        if self.epoch == 2:
            raise KeyboardInterrupt
        return epoch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            train.train(few, RECIPE, tmp_path / "m", **options)
    train.train(few, RECIPE, tmp_path / "m", resume=True, **options)
    steps = 3 * (80 // RECIPE.batch_size)
    loss = curve(tmp_path / "tb", "loss")
    assert [step for step, _ in loss] == list(range(steps))
    assert loss[-1][1] < loss[0][1]
    rates = [value for _, value in curve(tmp_path / "tb", "images_per_second")]
    assert len(rates) == 3
    assert min(rates) > 0
    assert [value for _, value in curve(tmp_path / "tb", "lr")][-1] < RECIPE.lr


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'unibct\[track\]'"):
        TensorBoard(tmp_path)
