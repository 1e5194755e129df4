"""How often the host waits for the device in a step, and in one that was written to wait."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.host_waits import META, HostWaits
from tests.training.runs import AUGMENTED, small_context
from unibct.embeddings.store import Embeddings, open_embeddings, save_embeddings
from unibct.methods import METHODS, find_method
from unibct.methods.base import OldEmbeddings, Settings
from unibct.training.batches import draw_epoch, remaining_batches
from unibct.training.state import initial_state
from unibct.training.step import TrainingStep

# In one test process: torch imports its compiler for the device `meta`, which takes seconds.
pytestmark = [pytest.mark.slowest, pytest.mark.xdist_group("host waits")]


@pytest.fixture(scope="module")
def stored_vectors(eighty_images, tmp_path_factory):
    """Old embeddings on disk."""
    vectors = np.random.default_rng(0).normal(size=(80, 128)).astype(np.float32)
    labels, names = eighty_images.labels, eighty_images.class_names
    embeddings = Embeddings(vectors, eighty_images.ids, labels, names, "old")
    folder = tmp_path_factory.mktemp("store") / "e"
    save_embeddings(embeddings, folder)
    return open_embeddings(folder).vectors


def on_meta(value):
    """A method's value on the stand-in for a GPU."""
    if isinstance(value, nn.Parameter):
        return nn.Parameter(value.to(META))
    return value.to(META) if isinstance(value, (torch.Tensor, nn.Module)) else value


def method_on_meta(name, context, vectors, *, on_disk):
    """A method that was made on the host, and then moved."""
    names, recipe = context.images.class_names, context.recipe
    labels = torch.from_numpy(context.pixels.images.labels)
    plain = torch.from_numpy(np.array(vectors))
    old = OldEmbeddings(plain, labels, names, names, torch.randn(len(names), 128), plain)
    numbers = {name: getattr(recipe, name) for name in ("scale", "margin", "tau", "lam", "drop")}
    settings = Settings(**numbers)
    method = find_method(name).make(old, settings)
    method.refresh(plain if method.needs_new_embeddings else None)
    for key, value in vars(method).items():
        if key != "_queue":  # on the host by design
            setattr(method, key, on_meta(value))
    rows = vectors if on_disk else plain.to(META)
    moved = dataclasses.replace(old, embeddings=rows, flipped=rows, labels=labels.to(META))
    for key in ("_old", "old_of_images"):
        if getattr(method, key, None) is not None:
            setattr(method, key, moved)
    return method


def context_on(device, images, **changes):
    recipe = AUGMENTED.updated(warmup_epochs=0, batch_size=8, **changes)
    return dataclasses.replace(small_context(images, recipe, workers=0), device=device)


def waits_of_a_step(images, name, vectors, *, on_disk, **changes):
    """What the host waits for in the third step, the loading of its batch included."""
    context = context_on(META, images, **changes)
    state = initial_state(context)
    state.use_method(method_on_meta(name, context, vectors, on_disk=on_disk))
    state.network.train()
    draws, step = draw_epoch(context, state), TrainingStep(context, state)
    batches = remaining_batches(context, draws, 0, state.method.old_of_images)
    for _ in range(3):
        with HostWaits() as counter:
            step.take(next(batches), draws.method_rng)
        state.step += 1
    return counter.waits


@pytest.mark.parametrize("name", [*METHODS, "advbct@released=true"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_step_never_waits(name, on_disk, eighty_images, stored_vectors):
    for changes in ({}, {"sample_rate": 0.5}):
        if name.startswith(("advbct", "mixbct")) and on_disk:
            continue  # these hold all old embeddings on the device
        waits = waits_of_a_step(eighty_images, name, stored_vectors, on_disk=on_disk, **changes)
        assert waits == []


def test_half_precision_waits_once(eighty_images, stored_vectors, monkeypatch):
    monkeypatch.setattr("unibct.training.step.autocast", lambda *_: nullcontext())
    for name in ("unibct-plus", "nccl"):
        options = {"on_disk": True, "precision": "float16", "sample_rate": 0.5}
        waits = waits_of_a_step(eighty_images, name, stored_vectors, **options)
        assert waits == ["aten._local_scalar_dense.default"]  # whether a gradient overflowed


def test_what_waits_is_counted():
    numbers = torch.arange(6.0).to(META)
    with HostWaits() as counter:
        torch.ones(3).to(META, non_blocking=True)
        _ = numbers[torch.tensor([1, 2]).to(META, non_blocking=True)]
        torch.where(numbers > 2, numbers, 0)
        assert counter.waits == []
        torch.ones(3).to(META)
        torch.nonzero(numbers)
        bool(numbers.sum() > 0)
        numbers.cpu()
    assert len(counter.waits) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", [*METHODS, "advbct@released=true"])
def test_a_step_on_a_gpu_never_waits(name, eighty_images):
    """torch raises an error wherever the host would wait."""
    context = context_on(torch.device("cuda", 0), eighty_images)
    state, names = initial_state(context), context.images.class_names
    vectors = torch.randn(80, 128, device="cuda")
    weights = torch.randn(len(names), 128)
    old = OldEmbeddings(vectors, context.labels, names, names, weights, vectors)
    settings = Settings(scale=64.0, margin=0.5, tau=0.05, lam=0.9, drop=0.1)
    method = find_method(name).make(old, settings)
    method.refresh(vectors if method.needs_new_embeddings else None)
    state.use_method(method)
    state.network.train()
    draws, step = draw_epoch(context, state), TrainingStep(context, state)
    batches = remaining_batches(context, draws, 0, method.old_of_images)
    step.take(next(batches), draws.method_rng)
    torch.cuda.set_sync_debug_mode("error")
    try:
        state.step += 1
        step.take(next(batches), draws.method_rng)
    finally:
        torch.cuda.set_sync_debug_mode("default")
