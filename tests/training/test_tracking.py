import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.runs import RECIPE, SMALL, stopped_before_epoch, train
from unibct.errors import UserError
from unibct.training import loop
from unibct.training.tracking import TensorBoard


def curve(folder, name):
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]


@pytest.mark.slow
def test_a_run_writes_its_curves_and_goes_on_with_them(glyph_classes, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_TRACK_EVERY", 1)
    few = glyph_classes.select(range(80))
    options = {"tensorboard": tmp_path / "tb"}
    with stopped_before_epoch(2):
        train(few, RECIPE, tmp_path / "m", **options)
    train(few, RECIPE, tmp_path / "m", resume=True, **options)
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


def test_any_tracker_that_is_passed_gets_the_same_points(four_classes, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_TRACK_EVERY", 1)

    class Mine:
        def __init__(self):
            self.points = []

        def log(self, values, step):
            self.points.append((step, dict(values)))

    mine = Mine()
    board = {"tensorboard": tmp_path / "tb", "tracker": mine}
    train(four_classes, SMALL, tmp_path / "m", **board)
    losses = [(step, values["loss"]) for step, values in mine.points if "loss" in values]
    assert losses == pytest.approx(curve(tmp_path / "tb", "loss"))
    assert len(losses) == 2 * 3
