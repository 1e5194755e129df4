"""Runs that are stopped or killed anywhere, and go on to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from tests.conftest import TINY
from unibct.distributed.ranks import Ranks, share_of
from unibct.errors import UserError
from unibct.models.folder import load_model
from unibct.training import checkpoints, train, trainer
from unibct.training.checkpoints import find_checkpoint, read_checkpoint, save_checkpoint
from unibct.training.loss_scale import LossScale
from unibct.training.recipe import load_recipe
from unibct.training.stopping import stop_request

RECIPE = load_recipe("glyphs", [*TINY, "flip=true", "crop=0.1", "colour=0.1"])


@pytest.fixture(scope="module")
def few(glyph_classes):
    return glyph_classes.select(np.arange(80))


@pytest.fixture(scope="module")
def old(few, tmp_path_factory):
    folder = tmp_path_factory.mktemp("old") / "m"
    return train.train(few.select(range(40)), RECIPE.updated(epochs=1), folder, device="cpu")


def kept(folder):
    """All that the last checkpoint holds, but the times."""
    found = read_checkpoint(find_checkpoint(folder))
    for row in found.state["metrics"]:
        del row["seconds"], row["images_per_second"]
    return found


def require_same(first, second):
    one, other = kept(first), kept(second)
    assert one.state == other.state
    for ours, theirs in ((one.tensors, other.tensors), (one.class_tensors, other.class_tensors)):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name
    assert load_model(first).fingerprint == load_model(second).fingerprint


@pytest.mark.parametrize(
    ("method", "changes", "workers"),
    [
        ("unibct", {}, 0),
        ("unibct", {}, 2),
        ("unibct-plus", {"sample_rate": 0.5}, 2),
        ("mixbct", {}, 0),
        ("nccl", {}, 0),
    ],
)
def test_a_run_stopped_within_an_epoch_goes_on_to_the_bit(
    method, changes, workers, few, old, tmp_path, monkeypatch
):
    monkeypatch.setattr(train, "remove_checkpoints", lambda folder: None)
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")  # decoded by the workers
    recipe = RECIPE.updated(**changes)
    options = {"old": old, "method": method, "device": "cpu", "resume": True}
    train.train(few, recipe, tmp_path / "whole", **options)
    step, rng = trainer.Trainer._step, random.Random(workers)
    stops = 0

    def stopping(self, *arguments):
        step(self, *arguments)
        if rng.random() < 0.3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(trainer.Trainer, "_step", stopping)
    while True:
        try:
            train.train(few, recipe, tmp_path / "part", workers=workers, **options)
            break
        except KeyboardInterrupt:
            stops += 1
            assert find_checkpoint(tmp_path / "part") is not None
    assert stops >= 2
    require_same(tmp_path / "part", tmp_path / "whole")


def test_the_number_of_workers_and_checkpoints_changes_nothing(few, old, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "remove_checkpoints", lambda folder: None)
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")
    for name, options in {
        "plain": {"workers": 0},
        "workers": {"workers": 3},
        "often": {"checkpoint_every": 1},
    }.items():
        train.train(few, RECIPE, tmp_path / name, old=old, device="cpu", **options)
        require_same(tmp_path / name, tmp_path / "plain")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_at_random_moments_goes_on_to_the_bit(workers, tmp_path):
    command = [
        sys.executable,
        "-m",
        "tests.training.kill_worker",
        tmp_path,
        str(workers),
        str(7 + workers),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "UNIBCT_PIXEL_MEMORY": "0"}
    found = subprocess.run(
        [str(part) for part in command], capture_output=True, env=environment, check=False
    )
    assert found.returncode == 0, found.stderr.decode()
    for method, kills in json.loads(found.stdout).items():
        assert kills >= 4
        require_same(tmp_path / f"{method}-killed", tmp_path / f"{method}-whole")
        left = [p.name for p in (tmp_path / f"{method}-killed").iterdir() if p.name[0] == "."]
        assert left == []


@pytest.mark.slow
def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on(photo_folder, tmp_path):
    out = tmp_path / "m"
    command = [sys.executable, "-m", "unibct", "train", str(photo_folder), "--out", str(out)]
    command += ["--device", "cpu", "--set", "epochs=500", "--set", "batch_size=8"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "metrics.csv").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.decode().splitlines()[-1].startswith("error: stopped; the same command goes on")
    assert read_checkpoint(find_checkpoint(out)).state["epoch"] >= 1


def test_only_a_second_ctrl_c_stops_at_once():
    with stop_request() as stop:
        assert not stop.wanted
        for _ in range(3):  # Slurm's, torchrun's
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_damaged_shared_warm_up_is_made_anew(few, old, tmp_path):
    options = {"old": old, "method": "contrast", "device": "cpu", "cache": tmp_path / "cache"}
    first = train.train(few, RECIPE, tmp_path / "first", **options)
    shared = next((tmp_path / "cache").glob("warmup-*/checkpoint-*"))
    next(shared.glob("classes-*")).unlink()
    second = train.train(few, RECIPE, tmp_path / "second", **options)
    assert second.fingerprint == first.fingerprint
    assert read_checkpoint(shared).class_tensors


def test_class_momentum_is_kept_once(few, tmp_path, monkeypatch):
    seen, save = [], trainer.Trainer.save
    monkeypatch.setattr(
        trainer.Trainer, "save", lambda self, folder: (seen.append(self), save(self, folder))
    )
    train.train(few, RECIPE.updated(epochs=1), tmp_path / "m", device="cpu")
    own = seen[0].optimizer.state[seen[0].class_weights]["momentum_buffer"]
    assert own.shape == seen[0].class_weights.shape
    assert len(seen[0].class_momentum) == 0


def whole_checkpoint(folder, world, classes=10):
    """A checkpoint as ``world`` ranks write it."""
    rows = torch.arange(classes * 2.0).reshape(classes, 2)
    for rank in range(world):
        own = share_of(classes, rank, world)
        temporary = folder / "checkpoint-00002-00000003"
        temporary.mkdir(parents=True, exist_ok=True)
        checkpoints.save_tensors(
            temporary / f"classes-{own.start:010}-{own.stop:010}.safetensors",
            {"w": rows[own.start : own.stop]},
            {},
        )
    checkpoints.save_tensors(temporary / "state.safetensors", {"a": rows}, {"state": '{"x": 1}'})
    return temporary, rows


@pytest.mark.parametrize("wrote", [1, 2, 3])
@pytest.mark.parametrize("reads", [1, 2, 4])
def test_other_ranks_read_the_rows_of_their_classes(wrote, reads, tmp_path):
    path, rows = whole_checkpoint(tmp_path, wrote)
    for rank in range(reads):
        own = share_of(10, rank, reads)
        found = read_checkpoint(path, own)
        assert torch.equal(found.class_tensors["w"], rows[own.start : own.stop])
    assert torch.equal(read_checkpoint(path).class_tensors["w"], rows)
    assert found.state == {"x": 1}


def test_missing_rows_are_named(tmp_path):
    path, _ = whole_checkpoint(tmp_path, 3)
    (path / "classes-0000000003-0000000006.safetensors").unlink()
    for wanted in (range(10), range(3, 6), range(5, 10)):
        with pytest.raises(UserError, match=r"the rows of class \d are missing"):
            read_checkpoint(path, wanted)


def test_the_newest_whole_checkpoint_counts_and_the_others_go(tmp_path):
    assert find_checkpoint(tmp_path) is None
    for place in ((0, 9), (0, 10), (1, 0)):
        tensors = {"a": torch.zeros(1)}
        save_checkpoint(tmp_path, place, {}, tensors, tensors, classes=1)
        assert [p.name for p in tmp_path.iterdir()] == [f"checkpoint-{place[0]:05}-{place[1]:08}"]
    (tmp_path / ".checkpoint-00001-00000002.tmp").mkdir()
    assert find_checkpoint(tmp_path).name == "checkpoint-00001-00000000"


def test_shares_are_whole_and_even():
    for total in (0, 1, 7, 93_431):
        for world in (1, 2, 3, 8):
            parts = [Ranks(rank, world).share(total) for rank in range(world)]
            assert [i for part in parts for i in part] == list(range(total))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_class_weights_are_drawn_alike_for_any_ranks(monkeypatch):
    monkeypatch.setattr(trainer, "_PIECE", 16)
    whole = torch.randn(50, 8, generator=torch.Generator().manual_seed(3)) * 0.01
    for world in (1, 3):
        parts = [
            trainer.initial_class_weights(50, 8, 3, share_of(50, rank, world))
            for rank in range(world)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_the_loss_scale_falls_at_once_and_rises_slowly():
    scale = LossScale(8.0)
    scale.update(finite=False)
    assert (scale.value, scale.good_steps) == (4.0, 0)
    for _ in range(2000):
        scale.update(finite=True)
    assert (scale.value, scale.good_steps) == (8.0, 0)
    for _ in range(9):
        scale.update(finite=False)
    assert scale.value == 1.0


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_other_precisions_train_and_resume_to_the_bit(precision, few, old, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "remove_checkpoints", lambda folder: None)
    recipe = RECIPE.updated(precision=precision)
    options = {"old": old, "device": "cpu"}
    train.train(few, recipe, tmp_path / "whole", **options)
    epoch = trainer.Trainer._epoch

    def stopping(self, *arguments):
        if self.epoch == 1:
            raise KeyboardInterrupt
        return epoch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            train.train(few, recipe, tmp_path / "part", **options)
    train.train(few, recipe, tmp_path / "part", resume=True, **options)
    require_same(tmp_path / "part", tmp_path / "whole")
    exact = train.train(few, RECIPE, tmp_path / "exact", **options)
    near, state = load_model(tmp_path / "whole"), kept(tmp_path / "whole").state
    assert exact.fingerprint != near.fingerprint
    losses = [row["loss_cls"] for row in state["metrics"]]
    assert losses[-1] < 0.8 * losses[0]
    if precision == "bfloat16":
        images = np.stack([few.read(i) for i in few.ids])
        assert (exact.embed(images) * near.embed(images)).sum(axis=1).mean() > 0.9
    else:
        assert state["loss_scale"][0] < 2**16  # its first steps overflowed, and were left out
