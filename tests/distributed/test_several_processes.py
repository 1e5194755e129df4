"""Several processes give what one gives: losses, training, checkpoints, embeddings."""

import csv
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.distributed.ranks_worker import WITH_TWO_ONLY, look, moved_run, runs_of
from tests.distributed.torchrun import forked_ranks
from tests.training.runs import require_same
from unibct.data.loader import read_pixels
from unibct.data.readers import open_images
from unibct.distributed.ranks import Ranks
from unibct.embeddings.extraction import embed
from unibct.embeddings.store import open_embeddings
from unibct.models.model_folder import load_model
from unibct.training.run_folder import find_checkpoint, read_checkpoint
from unibct.training.train import train
from unibct.training.validation import with_score_scale


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What one, two and three processes find."""
    root = tmp_path_factory.mktemp("ranks")
    found = forked_ranks("1,2,3", "tests.distributed.ranks_worker", root, check=False)
    assert found.returncode == 0, found.stderr
    return {n: root / str(n) for n in (1, 2, 3)}


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["all", "sample"])
def test_losses_and_gradients_are_those_of_one_process(runs, world, name):
    one = look(name == "sample")
    many = [safetensors.torch.load_file(runs[world] / f"{name}-{r}") for r in range(world)]
    assert torch.allclose(torch.cat([found["shard"] for found in many]), one["shard"], atol=1e-5)
    for key, expected in one.items():
        for found in many:
            if key != "shard":
                assert torch.allclose(found[key], expected, rtol=1e-5, atol=1e-4), key


def losses_of(folder):
    with (folder / "metrics.csv").open() as file:
        return [[float(r[k]) for k in ("loss_cls", "loss_comp")] for r in csv.DictReader(file)]


@pytest.mark.parametrize("name", runs_of(1))
def test_training_in_several_processes_is_training_in_one(runs, name):
    one, two = (np.array(losses_of(runs[n] / name)) for n in (1, 2))
    # torch's own normalisation rounds otherwise than ours, which shows in images with flat ground.
    assert np.allclose(two, one, rtol=5e-3)
    models = [load_model(runs[n] / name) for n in (1, 2)]
    assert models[0].class_weights.shape == models[1].class_weights.shape


@pytest.mark.parametrize("name", runs_of(1))
def test_three_processes_train_the_model_of_two(runs, name):
    two, three = (np.array(losses_of(runs[n] / name)) for n in (2, 3))
    assert np.allclose(three, two, rtol=1e-3)
    models = [load_model(runs[n] / name) for n in (2, 3)]
    images = open_images("glyphs:val").select(range(0, 160, 9))
    pixels = np.stack([images.read(i) for i in images.ids])
    cosines = (models[0].embed(pixels) * models[1].embed(pixels)).sum(axis=1)
    assert cosines.min() > 0.99
    assert models[0].class_weights.shape == models[1].class_weights.shape


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_score_scale_is_what_one_process_measures(runs, world):
    old, new = (load_model(runs[world] / name) for name in ("old", "unibct"))
    pixels = read_pixels(moved_run()[0], new.input.frame)
    again = with_score_scale(new.with_score_scale(None), old, pixels)
    assert again.score_scale == pytest.approx(new.score_scale, rel=1e-6)


@pytest.mark.parametrize("name", WITH_TWO_ONLY)
def test_kinds_of_normalisation_and_precision(runs, name):
    found = np.array(losses_of(runs[2] / name))
    assert found[-1, 0] < found[0, 0]
    plain = np.array(losses_of(runs[2] / "unibct"))
    assert not np.allclose(found, plain, rtol=1e-6)
    assert np.allclose(found, plain, rtol=0.1)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_stopped_together_they_go_on_to_the_bit(runs, world):
    require_same(runs[world] / "part", runs[world] / "whole")
    rows = sorted(p.name for p in find_checkpoint(runs[world] / "whole").glob("classes-*"))
    assert len(rows) == world


def test_what_two_processes_began_one_finishes(runs, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(runs[2] / "moved", folder)
    assert read_checkpoint(find_checkpoint(folder)).state["step"] == 1
    images, recipe = moved_run()
    old = load_model(runs[2] / "old")
    train(images, recipe, folder, old=old, method="unibct", resume=True, device="cpu")
    assert np.allclose(losses_of(folder), losses_of(runs[2] / "unibct"), rtol=5e-3)


def test_a_checkpoint_of_two_processes_goes_on_in_three(runs):
    path = find_checkpoint(runs[2] / "whole")
    whole = read_checkpoint(path)
    classes = len(whole.class_tensors["class_weights"])
    parts = [read_checkpoint(path, Ranks(r, 3).share(classes)) for r in range(3)]
    for name, tensor in whole.class_tensors.items():
        assert torch.equal(torch.cat([p.class_tensors[name] for p in parts]), tensor)


def test_extraction_is_divided_and_lands_in_one_store(runs, photo_folder, tmp_path):
    images = open_images("glyphs:val").select(range(160))
    for world in (2, 3):
        found = open_embeddings(runs[world] / "store", verify=True)
        assert len(list((runs[world] / "store").glob("vectors-*"))) == 10
        expected = embed(load_model(runs[world] / "none"), images)
        assert found.ids == images.ids
        assert np.array_equal(found.labels, images.labels)
        assert np.allclose(np.asarray(found.vectors), expected.vectors, atol=1e-6)
    line = ["unibct", "embed", runs[1] / "none", photo_folder, "--out", tmp_path / "e"]
    shown = forked_ranks(2, *line)
    assert shown.stdout.count("embeddings of dimension") == 1
    assert len(open_embeddings(tmp_path / "e")) == len(open_images(photo_folder))
