import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest
import torch

from tests.data.decode_counter import DecodeCounter
from tests.forked_commands import ForkedCommand, run_forked
from tests.notes import Notes, show
from tests.training.runs import (
    FINISHED,
    RECIPE,
    SMALL,
    losses,
    metrics,
    names_in,
    require_same,
    stopped_before_epoch,
    train,
)
from unibct.data.readers import open_images
from unibct.distributed.ranks import Ranks
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.methods import DEFAULT_METHOD, METHODS, find_method
from unibct.models.architectures import build_network, find_architecture
from unibct.models.input import InputSpec
from unibct.models.model_folder import load_model
from unibct.models.old_space import add_projection, old_space_dim, projection_weight, to_old_space
from unibct.training import run_folder
from unibct.training import train as run
from unibct.training.plan import Run, plan_run
from unibct.training.recipe import EARLIER_SETTINGS
from unibct.training.run_folder import find_checkpoint, read_checkpoint
from unibct.training.train import require_enough_for_all


@pytest.mark.parametrize(
    ("world", "batch_size", "message"),
    [
        (5, 16, "batch_size = 16 cannot be divided evenly by 5 processes"),
        (2, 32, "24 images are too few for 2 processes"),
        (6, 12, "4 classes are too few for 6 processes"),
    ],
)
def test_what_the_processes_cannot_divide_is_refused(world, batch_size, message, four_classes):
    run = plan_run(four_classes, RECIPE.updated(batch_size=batch_size))
    with pytest.raises(UserError, match=message):
        require_enough_for_all(run, Ranks(0, world))
    require_enough_for_all(run, Ranks())
    require_enough_for_all(plan_run(four_classes, RECIPE.updated(batch_size=12)), Ranks(1, 4))


def test_one_image_for_each_process_needs_a_common_batch_normalisation(four_classes):
    alone = plan_run(four_classes, RECIPE.updated(batch_size=4, sync_batch_norm=False))
    with pytest.raises(UserError, match="batch_size = 4 leaves each of 4 processes one image"):
        require_enough_for_all(alone, Ranks(0, 4))
    require_enough_for_all(alone, Ranks(0, 2))
    require_enough_for_all(alone, Ranks())
    together = plan_run(four_classes, RECIPE.updated(batch_size=4))
    require_enough_for_all(together, Ranks(0, 4))


# Runs that are stopped or killed anywhere, and continue to the bit.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("unibct", {}),
        ("unibct", {"dim": 24}),
        ("unibct", {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}),
        ("unibct-plus", {"dim": 160}),
        ("unibct-plus", {"precision": "bfloat16"}),
        ("unibct-plus", {"precision": "float16"}),
        *((method, {}) for method in ("advbct", "advbct@released=true", "nccl", "mixbct")),
        *((method, {"dim": 160}) for method in ("advbct", "nccl")),
    ],
)
def test_a_run_stopped_between_epochs_goes_on_to_the_bit(
    method, changes, four_classes, four_classes_old, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_folder, "remove_checkpoints", lambda folder: None)
    options = {"old": four_classes_old, "method": method}
    recipe = SMALL.updated(epochs=3, warmup_epochs=1, refresh_epochs=(2,), seed=5, **changes)
    whole = train(four_classes, recipe, tmp_path / "whole", **options)
    resume = False
    for stop in (0, 1, 2):
        with stopped_before_epoch(stop):
            train(four_classes, recipe, tmp_path / "part", resume=resume, **options)
        resume = stop > 0  # before the first epoch there is nothing to go on with
    train(four_classes, recipe, tmp_path / "part", resume=True, **options)
    require_same(tmp_path / "part", tmp_path / "whole")
    first, *_, last = losses(tmp_path / "part")
    assert losses(tmp_path / "whole")[-1] == last
    assert float(last[0]) < float(first[0])
    again = train(four_classes, recipe, tmp_path / "part", resume=True, **options)
    assert again.fingerprint == whole.fingerprint
    assert torch.equal(again.class_weights, whole.class_weights)


def test_a_stopped_run_is_no_model_and_no_place_for_another(four_classes, tmp_path):
    out = tmp_path / "m"
    with stopped_before_epoch(1):
        train(four_classes, SMALL, out)
    with pytest.raises(UserError, match="training has not finished"):
        load_model(out)
    with pytest.raises(UserError, match="exists already: a training that was stopped; go on"):
        train(four_classes, SMALL, out)
    with pytest.raises(UserError, match=r"another run: its recipe\.lr is"):
        train(four_classes, SMALL.updated(lr=0.01), out, resume=True)


def test_a_run_of_another_version_goes_on_with_a_note(four_classes, tmp_path, monkeypatch):
    def of_an_earlier_version(run):
        described = description(run)
        return described | {"recipe": described["recipe"] | EARLIER_SETTINGS}

    description, out = Run.description, tmp_path / "m"
    with stopped_before_epoch(1), monkeypatch.context() as patch:
        patch.setattr("unibct.training.plan.metadata.version", lambda name: "0.0.9")
        patch.setattr(Run, "description", of_an_earlier_version)
        train(four_classes, SMALL, out)
    notes, options = show(Notes()), {"resume": True}
    model = train(four_classes, SMALL, out, **options)
    now = metadata.version("unibct")
    assert f"{out} was begun with unibct 0.0.9 and goes on with {now}" in notes.texts
    stored = json.loads((out / "model.json").read_text())
    assert not EARLIER_SETTINGS.keys() & stored["training"]["recipe"].keys()
    stored["training"]["recipe"] |= EARLIER_SETTINGS | {"average": 0.9}
    (out / "model.json").write_text(json.dumps(stored))
    assert load_model(out).fingerprint == model.fingerprint
    with pytest.raises(UserError, match=r"another version of unibct: .*recipe\.average"):
        train(four_classes, SMALL, out, **options)
    stored["training"]["recipe"] |= EARLIER_SETTINGS
    (out / "model.json").write_text(json.dumps(stored))
    with monkeypatch.context() as patch:
        patch.setattr("unibct.training.plan.metadata.version", lambda name: "99.0")
        finished = train(four_classes, SMALL, out, **options)
    assert finished.fingerprint == model.fingerprint


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_bit(photo_folder, tmp_path):
    def command(out):
        settings = ["--set", "epochs=6", "--set", "batch_size=16", "--set", "lr_warmup_epochs=0"]
        line = ["unibct", "train", photo_folder, "--device", "cpu"]
        return [*line, "--out", out, "--resume", *settings]

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

    options = {"old": old_model}
    for target, name in ((run.TrainingLoop, "take_steps"), (run, "finished_model")):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(target, name, stop)
            with pytest.raises(KeyboardInterrupt):
                train(split_images[1], RECIPE, out, **options)
        upside_down = replace(split_images[1], read=lambda i: split_images[1].read(i)[::-1])
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
    first = train(images, RECIPE, str(tmp_path / "m"))
    renamed = replace(images, name=f"{photo_folder}/")
    again = train(renamed, RECIPE, tmp_path / "m", resume=True)
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
        train(images, RECIPE, tmp_path / "m")
    first = len(images) if memory else len(images) + per_epoch + looked_at
    assert counter.taken() == first
    for epochs_left in (2, 0):  # resumed, and finished
        train(images, RECIPE, tmp_path / "m", resume=True)
        used = len(images) if memory else 2 * (per_epoch + looked_at)
        assert counter.taken() == (used if epochs_left else 0)
    train(images, RECIPE, tmp_path / "n")
    (root / images.ids[5]).write_bytes((root / images.ids[9]).read_bytes())
    with pytest.raises(UserError, match="another run: its pixels is"):
        train(images, RECIPE, tmp_path / "n", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_at_random_moments_goes_on_to_the_bit(workers, tmp_path):
    command = ["tests.training.kill_worker", tmp_path, workers, 7 + workers]
    found = run_forked(*command, check=False, environment={"UNIBCT_PIXEL_MEMORY": "0"})
    assert found.returncode == 0, found.stderr
    for method, kills in json.loads(found.stdout).items():
        assert kills >= 4
        require_same(tmp_path / f"{method}-killed", tmp_path / f"{method}-whole")
        assert not list((tmp_path / f"{method}-killed").glob(".*"))


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


OTHERS = {*METHODS, "advbct@released=true"} - {DEFAULT_METHOD}


@pytest.mark.parametrize(
    "method",
    [DEFAULT_METHOD, *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(OTHERS))],
)
def test_every_method_trains(method, split_images, old_model, tmp_path):
    out = tmp_path / "new"
    model = train(split_images[1], RECIPE, out, old=old_model, method=method)
    loaded = load_model(out)
    assert loaded.fingerprint == model.fingerprint
    assert loaded.training["method"] == method
    assert loaded.old_fingerprint == (None if method == "none" else old_model.fingerprint)
    assert names_in(out) == FINISHED
    rows = metrics(out)
    assert ",".join(rows[0]) == "epoch,lr,eta,loss_cls,loss_comp,seconds,images_per_second"
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    waits, has_loss = find_method(method).has_warmup, method not in ("none", "mixbct")
    assert [float(row["eta"]) for row in rows] == [0 if waits else 1, 1, 1]
    assert (float(rows[0]["loss_comp"]) > 0) == (has_loss and not waits)
    assert (float(rows[2]["loss_comp"]) > 0) == has_loss


@pytest.mark.slow
def test_same_seed_same_result_and_the_first_epochs_are_the_free_model_s(
    split_images, old_model, tmp_path
):
    def trained(name, recipe=RECIPE, **options):
        return train(split_images[1], recipe, tmp_path / name, **options)

    first, again = trained("a", old=old_model), trained("b", old=old_model)
    assert first.fingerprint == again.fingerprint
    assert trained("c", RECIPE.updated(seed=5), old=old_model).fingerprint != first.fingerprint
    no_weight = trained("d", RECIPE.updated(eta=0.0, seed=5), old=old_model, method="unibct")
    assert no_weight.fingerprint == trained("e", RECIPE.updated(seed=5)).fingerprint


@pytest.mark.slow
def test_the_models_input_is_that_of_the_recipe(split_images, old_model, tmp_path):
    settings = {"size": "24x40", "channels": 3, "fit": "letterbox", "mean": (0.1, 0.2, 0.3)}
    recipe = RECIPE.updated(**settings)
    model = train(split_images[1], recipe, tmp_path / "m", old=old_model)
    spec = InputSpec(24, 40, 3, (0.1, 0.2, 0.3), 0.5, "letterbox")
    assert model.input == load_model(tmp_path / "m").input == spec
    # What is embedded from the set is what `embed` makes of the images as they are.
    rows = split_images[1].select(range(8))
    want = model.embed([rows.read(image_id) for image_id in rows.ids])
    assert np.allclose(embed(model, rows).vectors, want, atol=1e-5)
    # The old model has seen the images in its own form, not in the new one's.
    other = train(split_images[1], recipe.updated(fit="crop"), tmp_path / "n", old=old_model)
    assert other.fingerprint != model.fingerprint
    with pytest.raises(UserError, match="warm_start: the old model's weights are for images of 16"):
        train(split_images[1], recipe.updated(warm_start=True), tmp_path / "w", old=old_model)
    assert not (tmp_path / "w" / "model.json").exists()


@pytest.mark.slow
def test_training_learns(glyph_classes, tmp_path):
    recipe = RECIPE.updated(epochs=10, warmup_epochs=0, refresh_epochs=())
    model = train(glyph_classes, recipe, tmp_path / "m")
    rows = metrics(tmp_path / "m")
    assert float(rows[-1]["loss_cls"]) < 0.5 * float(rows[0]["loss_cls"])
    images = np.stack([glyph_classes.read(i) for i in glyph_classes.ids])
    logits = model.embed(images) @ torch.nn.functional.normalize(model.class_weights).numpy().T
    assert np.mean(logits.argmax(axis=1) == glyph_classes.labels) > 0.9


def test_what_cannot_work_is_refused_before_anything_is_written(split_images, old_model, tmp_path):
    images = open_images("glyphs:val").select(range(200))
    other_dim = "dimension is 64 but the old one's is 128, and mixbct mixes"
    for changes, arguments, message in [
        ({}, {"method": "unibct"}, "needs the old model"),
        ({}, {"method": "magic"}, "unknown method"),
        ({"dim": 64}, {"old": old_model, "method": "mixbct"}, other_dim),
        ({"warmup_epochs": 3}, {"old": old_model, "method": "unibct"}, "leaves none of 3 epochs"),
        ({}, {"old": old_model, "method": "bct"}, "bct cannot be used here"),
        ({"architecture": "vgg"}, {}, "unknown architecture"),
        ({"lr": 1e30}, {}, "diverged in epoch 0"),
        ({}, {"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
    ]:
        with pytest.raises(UserError, match=message):
            train(images, RECIPE.updated(**changes), tmp_path / "m", **arguments)
        assert list(tmp_path.iterdir()) == []


def test_names_are_opened_first(four_classes, tmp_path):
    for arguments, message in [
        ({"images": "photos"}, r"images is the text 'photos': open it .*open_images\('photos'\)"),
        ({"recipe": "glyphs"}, r"recipe is the text 'glyphs': .*load_recipe\('glyphs'\)"),
        ({"old": tmp_path}, r"old is the text .*open_embedder\("),
        ({"workers": -1}, "workers must not be negative, not -1"),
    ]:
        given = {"images": four_classes, "recipe": SMALL, "out": tmp_path / "m"} | arguments
        with pytest.raises(UserError, match=message):
            train(**given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "dim"), [("unibct-plus", 160), ("unibct", 24), ("advbct", 160), ("nccl", 160)]
)
def test_another_dimension_trains_with_a_projection(
    method, dim, four_classes, four_classes_old, tmp_path
):
    recipe = SMALL.updated(dim=dim, seed=5)
    options = {"old": four_classes_old, "method": method}
    model = train(four_classes, recipe, tmp_path / "whole", **options)
    assert (model.dim, old_space_dim(model)) == (dim, 128)
    start = build_network(find_architecture("resnet-small"), model.input, dim, seed=5)
    add_projection(start, dim, 128, seed=5)
    assert not torch.equal(projection_weight(start), projection_weight(model.network))


@pytest.mark.slow
def test_a_projected_model_comes_close_to_the_old_one(four_classes, four_classes_old, tmp_path):
    recipe = SMALL.updated(dim=160, epochs=8, eta=4.0, warmup_epochs=1, seed=5)
    options = {"old": four_classes_old, "method": "regress"}
    model = train(four_classes, recipe, tmp_path / "new", **options)
    images = np.stack([four_classes.read(i) for i in four_classes.ids])
    cosine = (to_old_space(model, model.embed(images)) * four_classes_old.embed(images)).sum(axis=1)
    assert cosine.mean() > 0.6
    warm = SMALL.updated(dim=160, warm_start=True, seed=6)
    again = train(four_classes, warm, tmp_path / "next", old=model)
    assert old_space_dim(again) is None  # the same dimension as its old model


def test_without_momentum(split_images, tmp_path):
    model = train(split_images[0], RECIPE.updated(momentum=0.0), tmp_path / "m")
    assert load_model(tmp_path / "m").fingerprint == model.fingerprint


def test_unibct_plus_works_from_the_first_epoch_on(four_classes, four_classes_old, tmp_path):
    options = {"method": "unibct-plus", "old": four_classes_old}
    recipe = SMALL.updated(warmup_epochs=2)  # no error: it has no warm-up
    train(four_classes, recipe, tmp_path / "m", cache=tmp_path / "cache", **options)
    rows = metrics(tmp_path / "m")
    assert [float(row["eta"]) for row in rows] == [1, 1]
    assert all(float(row["loss_comp"]) > 0 for row in rows)
    assert [p.name for p in (tmp_path / "cache").glob("warmup-*")] == []


def test_a_warm_start_begins_from_the_old_weights(
    split_images, four_classes, four_classes_old, tmp_path
):
    # Classes 2 to 5: the old model knows two of them, at other rows.
    others = split_images[1].select(
        [i for c in (2, 3, 4, 5) for i in np.flatnonzero(split_images[1].labels == c)]
    )
    recipe = SMALL.updated(warm_start=True, epochs=1, lr=1e-9)
    options = {"old": four_classes_old, "method": "none"}
    warm = train(others, recipe, tmp_path / "warm", **options)
    cold = train(others, recipe.updated(warm_start=False), tmp_path / "cold", **options)
    weights = {
        name: torch.cat([p.flatten() for p in model.network.parameters()])
        for name, model in (("old", four_classes_old), ("warm", warm), ("cold", cold))
    }
    assert torch.allclose(weights["warm"], weights["old"], atol=1e-6)
    assert not torch.allclose(weights["cold"], weights["old"], atol=1e-2)
    assert warm.class_names[:2] == four_classes_old.class_names[2:]
    assert torch.allclose(warm.class_weights[:2], four_classes_old.class_weights[2:], atol=1e-6)
    assert torch.allclose(warm.class_weights[2:], cold.class_weights[2:], atol=1e-6)
    assert not torch.allclose(warm.class_weights[:2], cold.class_weights[:2], atol=1e-2)
    assert warm.old_fingerprint == four_classes_old.fingerprint
    assert cold.old_fingerprint is None
    assert warm.training_classes == cold.training_classes | four_classes_old.training_classes
    assert warm.training_classes != cold.training_classes


def test_a_warm_start_that_cannot_work_is_refused(four_classes, four_classes_old, tmp_path):
    recipe, known = SMALL.updated(warm_start=True), four_classes_old
    other = "the old model is a resnet-small and the new one a resnet18"
    for changes, old, message in [
        ({}, None, "old model's weights: give old"),
        ({"architecture": "resnet18"}, known, other),
        ({"dim": 64}, known, "the old model has 128 and the recipe says dim = 64"),
    ]:
        with pytest.raises(UserError, match=message):
            train(four_classes, recipe.updated(**changes), tmp_path / "m", old=old, method="none")
        assert list(tmp_path.iterdir()) == []


def numbered(images, source):
    """The set as a file without class names gives it: classes 0, 1, …"""
    names = tuple(str(number) for number in range(len(images.class_names)))
    return replace(images, class_names=names, class_source=source)


@pytest.mark.slow
def test_numbers_of_another_file_are_other_classes(four_classes, tmp_path):
    """Two files without names both have a class 0: it is not the same one."""
    options = {"method": "none"}
    old = train(numbered(four_classes, "file-1"), SMALL, tmp_path / "old", **options)
    assert load_model(tmp_path / "old").class_source == "file-1"
    other, same = (numbered(four_classes, source) for source in ("file-2", "file-1"))
    recipe = SMALL.updated(epochs=1, warmup_epochs=0, lr=1e-9)
    for images in (other, replace(other, class_source=None)):
        with pytest.raises(UserError, match=r"bct cannot be used.*only number.*a classes\.txt"):
            train(images, recipe, tmp_path / "bct", old=old, method="bct")
    assert not (tmp_path / "bct").exists()
    train(same, recipe, tmp_path / "bct", old=old, method="bct")

    for images, taken in ((same, True), (other, False)):
        notes, out = show(Notes()), tmp_path / images.class_source
        model = train(images, recipe.updated(warm_start=True), out, old=old, **options)
        tolerance = 1e-6 if taken else 1e-2
        weights = (model.class_weights, old.class_weights)
        assert torch.allclose(*weights, atol=tolerance) == taken
        assert sum("no class weights" in text for text in notes.texts) == (not taken)


@pytest.mark.slow
def test_steps_give_a_small_set_more_epochs_and_the_model_says_so(four_classes, tmp_path):
    notes = show(Notes())
    recipe = SMALL.updated(steps=10, warmup_epochs=1)  # two epochs of three steps
    stretched = {"epochs": 4, "warmup_epochs": 2}
    by_steps = train(four_classes, recipe, tmp_path / "a")
    by_epochs = train(four_classes, SMALL.updated(**stretched), tmp_path / "b")
    assert by_steps.fingerprint == by_epochs.fingerprint
    stored = by_steps.training["recipe"]
    assert {key: stored[key] for key in stretched} == stretched
    said = "4 epochs instead of 2: 24 images are 3 steps"
    assert any(line.startswith(said) for line in notes.texts)
    again = train(four_classes, recipe, tmp_path / "a", resume=True)
    assert again.fingerprint == by_steps.fingerprint


def test_without_a_recipe_the_one_that_fits_is_trained(four_classes, tmp_path, monkeypatch):
    monkeypatch.setattr("unibct.training.train.recipe_for", lambda images: SMALL)
    chosen = train(four_classes, None, tmp_path / "chosen")
    assert chosen.training["recipe"]["batch_size"] == SMALL.batch_size
