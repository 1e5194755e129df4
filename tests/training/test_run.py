"""Runs that are stopped or killed anywhere, and continue to the bit."""

import csv
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata

import pytest
import torch

from tests.data.decode_counter import DecodeCounter
from tests.forked_commands import ForkedCommand, run_forked
from tests.notes import Notes
from tests.training.interruption import stopped_before_epoch
from tests.training.recipes import RECIPE, SMALL
from tests.training.run_results import require_same
from unibct.data.readers.table import open_images
from unibct.errors import UserError
from unibct.models.folder import load_model
from unibct.training import run
from unibct.training.checkpoints import find_checkpoint, read_checkpoint
from unibct.training.train import train


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_bit(split_images, old_model, tmp_path):
    old, method = old_model, "unibct"
    recipe = RECIPE.updated(epochs=4)
    whole = train(split_images[1], recipe, tmp_path / "whole", old=old, method=method, device="cpu")
    for stop_at in (0, 2):
        out = tmp_path / f"stopped at {stop_at}"
        with stopped_before_epoch(stop_at):
            train(split_images[1], recipe, out, old=old, method=method, device="cpu")
        if stop_at > 0:
            with pytest.raises(UserError, match="training has not finished"):
                load_model(out)
            with pytest.raises(
                UserError, match="exists already: a training that was stopped; go on"
            ):
                train(split_images[1], recipe, out, old=old, method=method, device="cpu")
            changed = recipe.updated(lr=0.01)
            with pytest.raises(UserError, match=r"another run: its recipe\.lr is"):
                train(split_images[1], changed, out, old=old, method=method, resume=True)
        options = {"old": old, "method": method, "resume": True, "device": "cpu"}
        resumed = train(split_images[1], recipe, out, **options)
        assert resumed.fingerprint == whole.fingerprint
        assert torch.equal(resumed.class_weights, whole.class_weights)
        assert train(split_images[1], recipe, out, **options).fingerprint == whole.fingerprint
        losses = [
            [row["loss_cls"] for row in csv.DictReader((folder / "metrics.csv").open())]
            for folder in (out, tmp_path / "whole")
        ]
        assert losses[0] == losses[1]


def test_a_run_of_another_version_goes_on_with_a_note(four_classes, tmp_path, monkeypatch):
    with stopped_before_epoch(1), monkeypatch.context() as patch:
        patch.setattr("unibct.training.plan.metadata.version", lambda name: "0.0.9")
        train(four_classes, SMALL, tmp_path / "m", device="cpu")
    notes = Notes()
    options = {"resume": True, "device": "cpu"}
    model = train(four_classes, SMALL, tmp_path / "m", progress=notes, **options)
    now = metadata.version("unibct")
    assert f"{tmp_path / 'm'} was begun with unibct 0.0.9 and goes on with {now}" in notes.texts
    with monkeypatch.context() as patch:
        patch.setattr("unibct.training.plan.metadata.version", lambda name: "99.0")
        finished = train(four_classes, SMALL, tmp_path / "m", **options)
    assert finished.fingerprint == model.fingerprint


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_bit(photo_folder, tmp_path):
    def command(out):
        settings = ["epochs=6", "batch_size=16", "lr_warmup_epochs=0"]
        overrides = [part for setting in settings for part in ("--set", setting)]
        line = ["unibct", "train", photo_folder, "--device", "cpu"]
        return [*line, "--out", out, "--resume", *overrides]

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with ForkedCommand(*command(killed)) as training:
        while training.process.is_alive() and not any(killed.glob("checkpoint-*")):
            time.sleep(0.01)
    assert training.process.exitcode == -signal.SIGKILL
    assert not (killed / "model.json").exists(), "killed too late to test anything"
    for out in (killed, whole):
        run_forked(*command(out))
    assert load_model(killed).fingerprint == load_model(whole).fingerprint


@pytest.mark.slow
def test_changed_pixels_are_another_run(split_images, old_model, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    options = {"old": old_model, "device": "cpu"}
    for target, name in ((run.TrainingLoop, "take_steps"), (run, "finished_model")):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(target, name, stop)
            with pytest.raises(KeyboardInterrupt):
                train(split_images[1], RECIPE, out, **options)
        upside_down = dataclasses.replace(
            split_images[1], read=lambda i: split_images[1].read(i)[::-1]
        )
        if name == "take_steps":  # nothing but the cache was written: it must not be used
            again = train(upside_down, RECIPE, out, resume=True, **options)
            fresh = train(upside_down, RECIPE, tmp_path / "fresh", **options)
            assert again.fingerprint == fresh.fingerprint
        else:
            with pytest.raises(UserError, match="another run: its pixels is"):
                train(upside_down, RECIPE, out, resume=True, **options)


@pytest.mark.slow
def test_the_folder_s_name_does_not_matter_on_resuming(photo_folder, tmp_path):
    images = open_images(photo_folder)
    first = train(images, RECIPE, str(tmp_path / "m"), device="cpu")
    renamed = dataclasses.replace(images, name=f"{photo_folder}/")
    again = train(renamed, RECIPE, tmp_path / "m", resume=True, device="cpu")
    assert again.fingerprint == first.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_run_decodes_its_images_to_train_and_not_to_compare(
    memory, photo_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", str(memory))
    root = shutil.copytree(photo_folder, tmp_path / "photos")
    images, counter = open_images(root), DecodeCounter(monkeypatch)
    per_epoch = len(images) // RECIPE.batch_size * RECIPE.batch_size
    looked_at = RECIPE.batch_size  # after each epoch, whether it has diverged
    with stopped_before_epoch(1):
        train(images, RECIPE, tmp_path / "m", device="cpu")
    first = len(images) if memory else len(images) + per_epoch + looked_at
    assert counter.taken() == first
    for epochs_left in (2, 0):  # resumed, and finished
        train(images, RECIPE, tmp_path / "m", resume=True, device="cpu")
        used = len(images) if memory else 2 * (per_epoch + looked_at)
        assert counter.taken() == (used if epochs_left else 0)
    train(images, RECIPE, tmp_path / "n", device="cpu")
    (root / images.ids[5]).write_bytes((root / images.ids[9]).read_bytes())
    with pytest.raises(UserError, match="another run: its pixels is"):
        train(images, RECIPE, tmp_path / "n", resume=True, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_at_random_moments_goes_on_to_the_bit(workers, tmp_path):
    command = ["tests.training.kill_worker", tmp_path, workers, 7 + workers]
    found = run_forked(*command, check=False, environment={"UNIBCT_PIXEL_MEMORY": "0"})
    assert found.returncode == 0, found.stderr
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
    assert errors.decode().splitlines()[-1].startswith("error: stopped; run the same command again")
    assert read_checkpoint(find_checkpoint(out)).state["epoch"] >= 1
