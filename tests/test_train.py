import csv
import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from tests.conftest import TINY
from unibct import embeddings, methods, train
from unibct.data.sets import open_images
from unibct.errors import UserError
from unibct.models.model import load_model
from unibct.recipe import load_recipe
from unibct.runs import plan_run
from unibct.scenarios import split

RECIPE = load_recipe("glyphs", TINY)


@pytest.fixture(scope="module")
def sets(glyph_classes):
    chosen = split(glyph_classes.labels, "extended-data")
    return glyph_classes.select(chosen.old), glyph_classes.select(chosen.new)


@pytest.fixture(scope="module")
def old_model(sets, tmp_path_factory):
    return train.train(sets[0], RECIPE, tmp_path_factory.mktemp("old") / "m", device="cpu")


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_trains(method, sets, old_model, tmp_path):
    out = tmp_path / "new"
    model = train.train(sets[1], RECIPE, out, old=old_model, method=method, device="cpu")
    loaded = load_model(out)
    assert loaded.fingerprint == model.fingerprint
    assert loaded.training["method"] == method
    assert loaded.old_fingerprint == (None if method == "none" else old_model.fingerprint)
    assert sorted(p.name for p in out.iterdir()) == [
        "classifier.safetensors",
        "metrics.csv",
        "model.json",
        "model.safetensors",
    ]
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["eta"]) for row in rows] == [0, 1, 1]
    assert float(rows[0]["loss_comp"]) == 0
    assert (float(rows[2]["loss_comp"]) > 0) == (method != "none")


def test_same_seed_same_result_and_the_first_epochs_are_the_free_model_s(sets, old_model, tmp_path):
    def trained(name, recipe=RECIPE, **options):
        return train.train(sets[1], recipe, tmp_path / name, device="cpu", **options)

    first, again = trained("a", old=old_model), trained("b", old=old_model)
    assert first.fingerprint == again.fingerprint
    assert trained("c", RECIPE.updated(seed=5), old=old_model).fingerprint != first.fingerprint
    no_weight = trained("d", RECIPE.updated(eta=0.0, seed=5), old=old_model)
    assert no_weight.fingerprint == trained("e", RECIPE.updated(seed=5)).fingerprint


def test_training_learns(glyph_classes, tmp_path):
    recipe = RECIPE.updated(epochs=10, warmup_epochs=0, refresh_epochs=())
    model = train.train(glyph_classes, recipe, tmp_path / "m", device="cpu")
    rows = list(csv.DictReader((tmp_path / "m" / "metrics.csv").open()))
    assert float(rows[-1]["loss_cls"]) < 0.5 * float(rows[0]["loss_cls"])
    images = np.stack([glyph_classes.read(i) for i in glyph_classes.ids])
    logits = model.embed(images) @ torch.nn.functional.normalize(model.class_weights).numpy().T
    assert np.mean(logits.argmax(axis=1) == glyph_classes.labels) > 0.9


def test_old_embeddings_are_computed_once(sets, old_model, tmp_path, monkeypatch):
    calls = []
    real = embeddings.Model.embed_pixels

    def counted(self, pixels):
        calls.append(self.fingerprint == old_model.fingerprint)
        return real(self, pixels)

    monkeypatch.setattr(embeddings.Model, "embed_pixels", counted)
    train.train(sets[1], RECIPE, tmp_path / "m", old=old_model, method="contrast", device="cpu")
    assert sum(calls) == -(-len(sets[1]) // 256)


@pytest.mark.parametrize("method", ["unibct", "none"])
def test_a_stopped_run_resumes_to_the_bit(method, sets, old_model, tmp_path, monkeypatch):
    old = None if method == "none" else old_model
    recipe = RECIPE.updated(epochs=5)
    whole = train.train(sets[1], recipe, tmp_path / "whole", old=old, method=method, device="cpu")
    epoch = train._Trainer._epoch
    for stop_at in (0, 1, 3):
        out = tmp_path / f"stopped at {stop_at}"

        def stopping(self, number, *arguments, stop_at=stop_at):
            if number == stop_at:
                raise KeyboardInterrupt
            return epoch(self, number, *arguments)

        monkeypatch.setattr(train._Trainer, "_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            train.train(sets[1], recipe, out, old=old, method=method, device="cpu")
        monkeypatch.setattr(train._Trainer, "_epoch", epoch)
        if stop_at > 0:
            with pytest.raises(UserError, match="training has not finished"):
                load_model(out)
            with pytest.raises(UserError, match="exists already"):
                train.train(sets[1], recipe, out, old=old, method=method, device="cpu")
            changed = recipe.updated(lr=0.01)
            with pytest.raises(UserError, match=r"another run: its recipe\.lr is"):
                train.train(sets[1], changed, out, old=old, method=method, resume=True)
        options = {"old": old, "method": method, "resume": True, "device": "cpu"}
        resumed = train.train(sets[1], recipe, out, **options)
        assert resumed.fingerprint == whole.fingerprint
        assert torch.equal(resumed.class_weights, whole.class_weights)
        assert train.train(sets[1], recipe, out, **options).fingerprint == whole.fingerprint
        losses = [
            [row["loss_cls"] for row in csv.DictReader((folder / "metrics.csv").open())]
            for folder in (out, tmp_path / "whole")
        ]
        assert losses[0] == losses[1]


def test_a_killed_process_resumes_to_the_bit(photo_folder, tmp_path):
    def command(out):
        settings = ["epochs=6", "batch_size=16", "lr_warmup_epochs=0"]
        overrides = [part for setting in settings for part in ("--set", setting)]
        line = [sys.executable, "-m", "unibct", "train", str(photo_folder), "--device", "cpu"]
        return [*line, "--out", str(out), "--resume", *overrides]

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(command(killed), stderr=subprocess.PIPE)
    while process.poll() is None and not (killed / "checkpoint.safetensors").exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (killed / "model.json").exists(), "killed too late to test anything"
    for out in (killed, whole):
        subprocess.run(command(out), check=True, capture_output=True)
    assert load_model(killed).fingerprint == load_model(whole).fingerprint


def test_a_damaged_checkpoint_is_named(sets, tmp_path):
    out = tmp_path / "m"
    out.mkdir()
    (out / "checkpoint.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged"):
        train.train(sets[0], RECIPE, out, resume=True)


def test_what_cannot_work_is_refused_before_anything_is_written(sets, old_model, tmp_path):
    images = open_images("glyphs:val").select(range(200))
    for arguments, message in [
        ({"method": "unibct"}, "needs the old model"),
        ({"method": "magic"}, "unknown method"),
        ({"old": old_model, "recipe": RECIPE.updated(dim=64)}, "dimension is 64 but the old"),
        ({"old": old_model, "recipe": RECIPE.updated(warmup_epochs=3)}, "leaves none of 3 epochs"),
        ({"old": old_model, "method": "bct"}, "bct cannot be used here"),
        ({"recipe": RECIPE.updated(architecture="vgg")}, "unknown architecture"),
        ({"recipe": RECIPE.updated(lr=1e30)}, "diverged in epoch 0"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
    ]:
        recipe = arguments.pop("recipe", RECIPE)
        with pytest.raises(UserError, match=message):
            train.train(images, recipe, tmp_path / "m", **({"device": "cpu"} | arguments))
        assert list(tmp_path.iterdir()) == []


def test_a_free_model_may_have_its_own_dimension(sets, old_model):
    run = plan_run(sets[1], RECIPE.updated(dim=64), old=old_model, method="none")
    assert run.recipe.dim == 64
    assert run.old_fingerprint is None


def test_a_foreign_folder_is_never_touched(sets, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "metrics.csv").write_text("mine too")
    with pytest.raises(UserError, match="exists already"):
        train.train(sets[0], RECIPE, tmp_path, resume=True, device="cpu")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.csv", "notes.txt"]
    assert (tmp_path / "metrics.csv").read_text() == "mine too"


def test_changed_pixels_are_another_run(sets, old_model, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    options = {"old": old_model, "device": "cpu"}
    for stop_at in ("_epoch", "finished_model"):
        out = tmp_path / stop_at
        with monkeypatch.context() as patch:
            patch.setattr(train._Trainer, stop_at, stop)
            with pytest.raises(KeyboardInterrupt):
                train.train(sets[1], RECIPE, out, **options)
        upside_down = dataclasses.replace(sets[1], read=lambda i: sets[1].read(i)[::-1])
        if stop_at == "_epoch":  # nothing but the cache was written: it must not be used
            again = train.train(upside_down, RECIPE, out, resume=True, **options)
            fresh = train.train(upside_down, RECIPE, tmp_path / "fresh", **options)
            assert again.fingerprint == fresh.fingerprint
        else:
            with pytest.raises(UserError, match="another run: its pixels is"):
                train.train(upside_down, RECIPE, out, resume=True, **options)


def test_the_folder_s_name_does_not_matter_on_resuming(photo_folder, tmp_path):
    images = open_images(photo_folder)
    first = train.train(images, RECIPE, str(tmp_path / "m"), device="cpu")
    renamed = dataclasses.replace(images, name=f"{photo_folder}/")
    again = train.train(renamed, RECIPE, tmp_path / "m", resume=True, device="cpu")
    assert again.fingerprint == first.fingerprint


def test_without_momentum(sets, tmp_path):
    model = train.train(sets[0], RECIPE.updated(momentum=0.0), tmp_path / "m", device="cpu")
    assert load_model(tmp_path / "m").fingerprint == model.fingerprint


def test_bct_needs_no_old_embeddings(sets, old_model, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "embed_pixel_batches", None)
    train.train(sets[1], RECIPE, tmp_path / "m", old=old_model, method="bct", device="cpu")
    with pytest.raises(TypeError):
        train.train(sets[1], RECIPE, tmp_path / "n", old=old_model, method="regress", device="cpu")


def test_leftovers_of_a_killed_process_neither_block_nor_stay(sets, old_model, tmp_path):
    out = tmp_path / "m"
    (out / ".old_embeddings").mkdir(parents=True)
    for name in (".checkpoint.safetensors.x1.tmp", ".metrics.csv.y2.tmp"):
        (out / name).write_text("half")
    options = {"old": old_model, "resume": True, "device": "cpu"}
    first = train.train(sets[1], RECIPE, out, **options)
    finished = ["classifier.safetensors", "metrics.csv", "model.json", "model.safetensors"]
    assert sorted(p.name for p in out.iterdir()) == finished
    (out / "checkpoint.safetensors").write_text("killed before it was removed")
    (out / ".old_embeddings").mkdir()
    assert train.train(sets[1], RECIPE, out, **options).fingerprint == first.fingerprint
    assert sorted(p.name for p in out.iterdir()) == finished


def test_a_damaged_cache_is_made_again(sets, old_model, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    out, options = tmp_path / "m", {"old": old_model, "device": "cpu"}
    with monkeypatch.context() as patch:
        patch.setattr(train._Trainer, "_epoch", stop)
        with pytest.raises(KeyboardInterrupt):
            train.train(sets[1], RECIPE, out, **options)
    vectors = out / ".old_embeddings" / "embeddings" / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-4] + b"ruin")
    again = train.train(sets[1], RECIPE, out, resume=True, **options)
    fresh = train.train(sets[1], RECIPE, tmp_path / "n", **options)
    assert again.fingerprint == fresh.fingerprint


def test_a_last_step_that_ruins_the_model_is_noticed(glyph_classes, tmp_path):
    one_step = RECIPE.updated(epochs=1, batch_size=512, lr=1e30, warmup_epochs=0)
    with pytest.raises(UserError, match="diverged in epoch 0"):
        train.train(glyph_classes, one_step, tmp_path / "m", device="cpu")
    assert not (tmp_path / "m").exists()
