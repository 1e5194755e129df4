import json
import os
import shutil
import signal
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models.cases import small_model
from tests.training.runs import AUGMENTED, RECIPE, SHORT, require_same, train
from unibct.data.training_classes import NO_CLASSES, UNKNOWN_CLASSES
from unibct.embeddings.extraction import embed
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import save_embeddings
from unibct.embeddings.stored import open_data
from unibct.errors import UserError
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.models.architectures import ARCHITECTURES, build_network, find_architecture
from unibct.models.blended_weights import blend_weights
from unibct.models.input import InputSpec
from unibct.models.model_folder import load_model, save_model
from unibct.training import run_folder
from unibct.training.network import (
    autocast,
    first_classes,
    freeze_layers,
    recipe_architecture,
    recipe_input,
    seed_step,
    slow_precision_note,
    train_mode,
)
from unibct.training.recipe import Recipe, load_recipe
from unibct.training.step import TrainingStep


def test_the_forward_pass_has_the_recipe_s_precision():
    weights, rows = torch.ones(4, 4), torch.ones(2, 4)
    for precision in ("float32", "bfloat16"):
        with autocast(precision, torch.device("cpu")):
            assert (rows @ weights).dtype == getattr(torch, precision)


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_a_processor_that_only_imitates_a_format_is_named(monkeypatch, capability):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    note = slow_precision_note("bfloat16", torch.device("cpu"))
    assert (note is None) == (capability == "AVX512")
    for text in ("no instructions for bfloat16", "precision=float32"):
        assert note is None or text in note
    assert slow_precision_note("float32", torch.device("cpu")) is None
    assert slow_precision_note("bfloat16", torch.device("cuda")) is None


def test_frozen_layers_stay_as_they_were(four_classes, tmp_path):
    frozen = ("conv1", "bn1", "layer1")
    recipe = RECIPE.updated(freeze=frozen, seed=5, size=None)
    model = train(four_classes, recipe, tmp_path / "m")
    first = build_network("resnet-small", ARCHITECTURES["resnet-small"].input, model.dim, seed=5)
    for name, value in first.state_dict().items():
        kept = name.split(".")[0] in frozen
        assert torch.equal(model.network.state_dict()[name], value) == kept, name


def test_a_layer_is_its_whole_name():
    names = ("layer1", "layer10")
    network = torch.nn.Sequential(OrderedDict((name, torch.nn.BatchNorm1d(2)) for name in names))
    freeze_layers(network, ["layer1"])
    assert [p.requires_grad for p in network.parameters()] == [False, False, True, True]
    train_mode(network, ["layer1"])
    assert [layer.training for layer in network] == [False, True]
    with pytest.raises(UserError, match=r"freeze = layer2: .* its layers are layer1, layer10"):
        freeze_layers(network, ["layer2"])


def test_what_a_step_draws_depends_on_its_place_only():
    def drawn(*place):
        torch.rand(3)
        seed_step(*place)
        return torch.rand(4)

    assert torch.equal(drawn(1, 2, 3, 0), drawn(1, 2, 3, 0))
    others = [drawn(0, 2, 3, 0), drawn(1, 0, 3, 0), drawn(1, 2, 0, 0), drawn(1, 2, 3, 1)]
    assert all(not torch.equal(drawn(1, 2, 3, 0), other) for other in others)


@pytest.mark.slow
def test_all_settings_together_resume_to_the_bit(eighty_images, eighty_old, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "remove_checkpoints", lambda folder: None)
    recipe = AUGMENTED.updated(
        optimizer="adamw",
        lr=1e-3,
        backbone_lr=0.5,
        clip=1.0,
        freeze="conv1",
        augment="python:tests.training.test_network:salted",
        batch_size=16,
    )
    options = {"old": eighty_old, "method": "unibct", "resume": True}
    before = torch.random.get_rng_state()
    train(eighty_images, recipe, tmp_path / "whole", **options)
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's numbers stay"
    take, stops = TrainingStep.take, []

    def stopping(self, *arguments):
        result = take(self, *arguments)
        place = (self.state.epoch, self.state.step)
        if place in {(0, 1), (1, 2), (2, 0)} and place not in stops:
            stops.append(place)
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(TrainingStep, "take", stopping)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train(eighty_images, recipe, tmp_path / "part", **options)
    train(eighty_images, recipe, tmp_path / "part", **options)
    assert len(stops) == 3
    require_same(tmp_path / "part", tmp_path / "whole")


def salted(pixels, rng):
    """A user's own change: some white points."""
    return np.where(rng.random(pixels.shape) < 0.02, 255, pixels).astype(np.uint8)


def test_a_recipe_without_settings_takes_the_networks_own_input():
    for name in ("resnet18", "resnet-small"):
        recipe = Recipe(architecture=name)
        assert recipe_input(recipe) == recipe_architecture(recipe).input


def test_the_settings_change_the_input():
    settings = ["size=128x64", "fit=crop", "mean=[0.4, 0.5, 0.6]", "deviation=0.25"]
    recipe = load_recipe("paper", settings)
    assert recipe_input(recipe) == InputSpec(128, 64, 3, (0.4, 0.5, 0.6), 0.25, "crop")
    grey = Recipe(architecture="resnet18", channels=1, size=64)
    assert recipe_input(grey) == InputSpec(64, 64, 1)


def test_means_must_fit_the_channels():
    with pytest.raises(UserError, match="mean has 3 numbers for images with 1 channels"):
        recipe_input(Recipe(channels=1, mean=(0.1, 0.2, 0.3)))


def test_first_weights_have_learnt_classes(four_classes, four_classes_old, split_images, tmp_path):
    """Weights of a model folder bring its training classes along, also to descendants."""
    rows = [np.flatnonzero(split_images[1].labels == c)[:6] for c in range(4, 8)]
    others = split_images[1].select(np.concatenate(rows))
    save_model(four_classes_old, tmp_path / "past")
    shutil.copy(tmp_path / "past/model.safetensors", tmp_path / "bare.safetensors")
    recipe, options = SHORT, {"method": "none"}

    def seen(model):
        models = {"new": model.training_classes}
        return count_seen_classes(four_classes.class_names, None, models).note

    assert seen(train(others, recipe, tmp_path / "a", **options)).startswith("none of the 4")
    known = recipe.updated(weights=str(tmp_path / "past"))
    begun = train(others, known, tmp_path / "b", **options)
    assert seen(begun).startswith("4 of the 4 test classes were in a model's training set")
    within = recipe.updated(weights=str(tmp_path / "past/model.safetensors"))
    assert seen(train(others, within, tmp_path / "c", **options)).startswith("4 of the 4")
    bare = recipe.updated(weights=str(tmp_path / "bare.safetensors"))
    unknown = train(others, bare, tmp_path / "d", **options)
    assert "what the first weights" in seen(unknown)
    assert "is unknown" in seen(unknown)
    warm = recipe.updated(warm_start=True)
    child = train(others, warm, tmp_path / "e", old=unknown, **options)
    assert "what the first weights" in seen(child)
    assert "what the first weights" in seen(blend_weights(unknown, child, 0.5))
    last = train(others, warm, tmp_path / "f", old=begun, **options)
    assert seen(last).startswith("4 of the 4")
    save_model(last, tmp_path / "again")
    assert seen(load_model(tmp_path / "again")).startswith("4 of the 4")


OWN = "python:tests.models.architectures.own_networks"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"architecture": "resnet-small"}, NO_CLASSES),
        ({"architecture": "resnet-small", "weights": "random"}, NO_CLASSES),
        ({"architecture": f"{OWN}:convolutions"}, NO_CLASSES),
        ({"architecture": f"{OWN}:Described"}, NO_CLASSES),
        ({"architecture": f"{OWN}:whole"}, UNKNOWN_CLASSES),  # a network that is there already
        ({"architecture": f"{OWN}:whole", "weights": "random"}, UNKNOWN_CLASSES),
        ({"architecture": f"{OWN}:shaken"}, UNKNOWN_CLASSES),  # one with noise on all weights
    ],
)
def test_only_weights_that_are_drawn_have_learnt_nothing(settings, expected):
    assert first_classes(Recipe(**settings)) == expected


def test_published_weights_are_of_unknown_classes(monkeypatch):
    entry = replace(find_architecture("resnet-small"), start=print, start_digest="downloaded")
    monkeypatch.setattr("unibct.training.network.recipe_architecture", lambda recipe: entry)
    assert first_classes(Recipe(architecture="timm:x", download=True)) == UNKNOWN_CLASSES


def test_weights_that_do_not_belong_to_their_folder_are_unknown(tmp_path):
    """Somebody has put other weights beside the description."""
    for seed in (0, 1):
        save_model(small_model(seed), tmp_path / str(seed))
    recipe = Recipe(architecture="resnet-small", weights=str(tmp_path / "0"))
    assert first_classes(recipe) == small_model().training_classes
    shutil.copy(tmp_path / "1/model.safetensors", tmp_path / "0")
    assert first_classes(recipe) == UNKNOWN_CLASSES


def test_vectors_have_a_past_too(four_classes, four_classes_old, tmp_path):
    """A projection that was trained on a model's vectors has learnt what this model has learnt."""
    vectors = embed(four_classes_old, four_classes)
    save_embeddings(vectors, tmp_path / "folder")
    write_embeddings(vectors, tmp_path / "x.npy", "npy")
    seen = {}
    for name in ("folder", "x.npy"):
        rows = open_data(f"embeddings:{tmp_path / name}")
        is_test = rows.labels < 2
        test, training = (rows.select(part.nonzero()[0]) for part in (is_test, ~is_test))
        recipe = Recipe(architecture="projection", epochs=1, batch_size=8, warmup_epochs=0)
        head = train(training, recipe, tmp_path / f"head {name}")
        models = {"new": load_model(tmp_path / f"head {name}").training_classes}
        assert head.training_classes == models["new"]
        seen[name] = count_seen_classes(test.class_names, test.class_source, models).note
    assert seen["folder"].startswith("2 of the 2 test classes were")
    described = json.loads((tmp_path / "head folder/model.json").read_text())
    del described["further_classes"]  # of an earlier version
    (tmp_path / "head folder/model.json").write_text(json.dumps(described))
    assert not load_model(tmp_path / "head folder").training_classes.complete
    assert "is unknown: what the first weights, the vectors or the map of the new" in seen["x.npy"]
