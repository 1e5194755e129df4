import os
import random
import signal
from contextlib import contextmanager

import pytest
import torch

from tests.notes import Notes, show
from tests.training.runs import AUGMENTED, RECIPE, SMALL, metrics, require_same, train
from unibct.errors import UserError
from unibct.training import run_folder
from unibct.training.loop import TrainingLoop, stop_request
from unibct.training.run_folder import find_checkpoint, read_checkpoint
from unibct.training.step import TrainingStep

MIXBCT = "mixbct@warmup_epochs=1"  # with the warm-up of the recipe, as the paper's methods


def test_only_a_second_ctrl_c_stops_at_once():
    with stop_request() as stop:
        assert not stop.wanted
        for _ in range(3):  # Slurm's, torchrun's
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_last_step_that_ruins_the_model_is_noticed(glyph_classes, tmp_path):
    one_step = RECIPE.updated(epochs=1, batch_size=512, lr=1e30, warmup_epochs=0)
    with pytest.raises(UserError, match="diverged in epoch 0"):
        train(glyph_classes, one_step, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_runs_that_share_a_cache_share_the_warm_up_and_the_old_embeddings(
    four_classes, four_classes_old, tmp_path, monkeypatch
):
    def trained(name, method, **options):
        options |= {"old": four_classes_old, "method": method}
        return train(four_classes, SMALL, tmp_path / name, **options)

    alone = {method: trained(f"{method} alone", method) for method in ("contrast", MIXBCT)}
    cache = tmp_path / "cache"
    first = trained("first", "contrast", cache=cache)
    assert first.fingerprint == alone["contrast"].fingerprint
    epochs, take_steps = [], TrainingLoop.take_steps

    def watched(self, *arguments):
        epochs.append(self.state.epoch)
        take_steps(self, *arguments)

    monkeypatch.setattr(TrainingLoop, "take_steps", watched)
    monkeypatch.setattr("unibct.embeddings.extraction.StoreRun.rest_in_memory", None)
    second = trained("second", MIXBCT, cache=cache)
    assert epochs == [1]
    assert second.fingerprint == alone[MIXBCT].fingerprint
    assert torch.equal(second.class_weights, alone[MIXBCT].class_weights)
    rows = metrics(tmp_path / "second")
    assert rows[0] == metrics(tmp_path / "first")[0]
    losses = [[row["loss_cls"] for row in r] for r in (rows, metrics(tmp_path / f"{MIXBCT} alone"))]
    assert losses[0] == losses[1]
    assert second.fingerprint != first.fingerprint


def require_what_it_trains_alone(images, recipe, folder, first, second):
    """A run that finds what another one left in the cache trains the model that it trains alone."""
    alone = train(images, recipe, folder / "alone", **second)
    train(images, recipe, folder / "first", cache=folder / "cache", **first)
    shared = train(images, recipe, folder / "second", cache=folder / "cache", **second)
    assert shared.fingerprint == alone.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("bct", "unibct-centroid"),
        ("nccl@warmup_epochs=1", "advbct@warmup_epochs=1"),
        ("advbct@warmup_epochs=1", "bct"),
    ],
)
def test_a_method_takes_nothing_but_the_warm_up_of_another(
    first, second, four_classes, four_classes_old, tmp_path
):
    runs = [{"old": four_classes_old, "method": method} for method in (first, second)]
    require_what_it_trains_alone(four_classes, SMALL, tmp_path, *runs)


@pytest.mark.slow
def test_the_old_model_may_be_another_after_the_same_warm_up(
    four_classes, four_classes_old, tmp_path
):
    recipe = SMALL.updated(seed=7)
    other = train(four_classes, recipe.updated(seed=8), tmp_path / "other")
    runs = [{"old": old, "method": "bct"} for old in (four_classes_old, other)]
    require_what_it_trains_alone(four_classes, recipe, tmp_path, *runs)


def test_a_run_that_is_all_warm_up_keeps_its_metrics(four_classes, tmp_path):
    recipe, options = SMALL.updated(warmup_epochs=2), {"cache": tmp_path / "cache"}
    first, again = (train(four_classes, recipe, tmp_path / name, **options) for name in "ab")
    assert again.fingerprint == first.fingerprint
    assert metrics(tmp_path / "b") == metrics(tmp_path / "a")


@pytest.mark.slow
def test_a_damaged_shared_warm_up_is_made_again(eighty_images, eighty_old, tmp_path):
    options = {"old": eighty_old, "method": "contrast", "cache": tmp_path / "cache"}
    first = train(eighty_images, AUGMENTED, tmp_path / "first", **options)
    shared = next((tmp_path / "cache").glob("warmup-*/checkpoint-*"))
    next(shared.glob("classes-*")).unlink()
    second = train(eighty_images, AUGMENTED, tmp_path / "second", **options)
    assert second.fingerprint == first.fingerprint
    assert read_checkpoint(shared).class_tensors


@pytest.mark.slow
def test_the_recall_of_a_shared_warm_up_is_shared_too(four_classes, four_classes_old, tmp_path):
    options = {"old": four_classes_old, "validation": 0.5}
    runs = [options | {"method": method} for method in ("contrast", MIXBCT)]
    require_what_it_trains_alone(four_classes, SMALL, tmp_path, *runs)
    rows = metrics(tmp_path / "second")
    assert rows[0] == metrics(tmp_path / "first")[0]
    assert rows[1]["recall_at_1"] == metrics(tmp_path / "alone")[1]["recall_at_1"]
    # Without an old model the best epoch may be one of the warm-up, so that it is not shared.
    train(four_classes, SMALL, tmp_path / "free", cache=tmp_path / "cache", validation=0.5)
    assert metrics(tmp_path / "free")[0]["seconds"] != rows[0]["seconds"]
    assert (tmp_path / "free" / "best" / "model.json").is_file()


@pytest.mark.slow
def test_a_warm_up_that_cannot_be_shared_is_said(four_classes, four_classes_old, tmp_path):
    (tmp_path / "file").write_text("no folder")
    notes, options = show(Notes()), {"old": four_classes_old, "method": "contrast"}
    model = train(four_classes, SMALL, tmp_path / "m", cache=tmp_path / "file", **options)
    alone = train(four_classes, SMALL, tmp_path / "alone", **options)
    assert model.fingerprint == alone.fingerprint
    assert sum("the next run warms up by itself" in text for text in notes.texts) == 1
    assert any("cannot be written" in text and "kept in memory" in text for text in notes.texts)


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
    options = {"old": eighty_old, "method": method, "resume": True}
    train(eighty_images, recipe, tmp_path / "whole", **options)
    take, rng, stops = TrainingStep.take, random.Random(workers), 0

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
        train(eighty_images, AUGMENTED, tmp_path / "part")
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
        train(eighty_images, AUGMENTED, tmp_path / name, old=eighty_old, **options)
        require_same(tmp_path / name, tmp_path / "plain")
