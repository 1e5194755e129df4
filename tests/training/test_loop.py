import os
import random
import signal
from contextlib import contextmanager

import pytest

from tests.training.recipes import AUGMENTED
from tests.training.run_results import require_same
from unibct.training import run_folder
from unibct.training.checkpoints import find_checkpoint
from unibct.training.step import TrainingStep
from unibct.training.stopping import stop_request
from unibct.training.train import train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes", "workers"),
    [
        ("unibct", {}, 2),
        ("unibct-plus", {"sample_rate": 0.5}, 2),
        ("unibct", {}, 0),
        ("mixbct", {}, 0),
        ("nccl", {}, 0),
    ],
)
def test_a_run_stopped_within_an_epoch_goes_on_to_the_bit(
    method, changes, workers, eighty_images, eighty_old, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_folder, "remove_checkpoints", lambda folder: None)
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")  # decoded by the workers
    recipe = AUGMENTED.updated(**changes)
    options = {"old": eighty_old, "method": method, "device": "cpu", "resume": True}
    train(eighty_images, recipe, tmp_path / "whole", **options)
    take, rng = TrainingStep.take, random.Random(workers)
    stops = 0

    def stopping(self, *arguments):
        result = take(self, *arguments)
        if rng.random() < 0.3:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(TrainingStep, "take", stopping)
    while True:
        try:
            train(eighty_images, recipe, tmp_path / "part", workers=workers, **options)
            break
        except KeyboardInterrupt:
            stops += 1
            assert find_checkpoint(tmp_path / "part") is not None
    assert stops >= 2
    require_same(tmp_path / "part", tmp_path / "whole")


def test_a_signal_at_the_very_end_of_an_epoch_is_not_forgotten(
    eighty_images, tmp_path, monkeypatch
):
    @contextmanager
    def late_signal():
        with stop_request() as stop:
            yield stop
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("unibct.training.loop.stop_request", late_signal)
    with pytest.raises(KeyboardInterrupt):
        train(eighty_images, AUGMENTED, tmp_path / "part", device="cpu")
    assert find_checkpoint(tmp_path / "part").name == "checkpoint-00001-00000000"


@pytest.mark.slow
def test_the_number_of_workers_and_checkpoints_changes_nothing(
    eighty_images, eighty_old, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_folder, "remove_checkpoints", lambda folder: None)
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")
    for name, options in {
        "plain": {"workers": 0},
        "workers": {"workers": 3},
        "often": {"checkpoint_every": 1},
    }.items():
        train(eighty_images, AUGMENTED, tmp_path / name, old=eighty_old, device="cpu", **options)
        require_same(tmp_path / name, tmp_path / "plain")
