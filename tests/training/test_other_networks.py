"""Networks of other libraries train, resume, embed, shard and evaluate like ours."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import TINY_OPTIONS, run_command
from tests.distributed.torchrun import forked_ranks
from tests.models.architectures.other_libraries import saved_network
from tests.training.runs import SMALL, stopped_before_epoch, train
from unibct.data.readers import open_images
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.models.model_folder import load_model

OWN = "python:tests.models.architectures.own_networks:convolutions"


@pytest.fixture(scope="module")
def architectures(tmp_path_factory):
    root = tmp_path_factory.mktemp("backbones")
    kinds = ("vit", "resnet", "dinov2")
    return {kind: f"transformers:{saved_network(kind, root / kind)}" for kind in kinds} | {
        "timm": "timm:test_efficientnet",
        "timm vit": "timm:test_vit",
    }


def check_training(images, old, architecture, tmp_path):
    """Train for two epochs, stop and resume another run, and compare all of them."""
    recipe = SMALL.updated(architecture=architecture, size=32, lr=0.01, warmup_epochs=1)
    options = {"old": old, "method": "unibct"}
    whole = train(images, recipe, tmp_path / "whole", **options)
    with stopped_before_epoch(1):
        train(images, recipe, tmp_path / "stopped", **options)
    resumed = train(images, recipe, tmp_path / "stopped", resume=True, **options)
    assert resumed.fingerprint == whole.fingerprint
    assert whole.dim == old.dim
    assert (whole.input.height, whole.input.channels) == (32, 3)
    loaded = load_model(tmp_path / "whole")
    assert loaded.fingerprint == whole.fingerprint
    vectors = embed(loaded, images).vectors
    pictures = [images.read(image_id) for image_id in images.ids]
    assert np.allclose(vectors, loaded.embed(pictures), atol=1e-5)
    # Both the network and its head have moved.
    other = train(images, recipe.updated(lr=0.02), tmp_path / "other", **options)
    for name, tensor in other.network.state_dict().items():
        if name in ("head.weight", "backbone.conv_stem.weight", "backbone.0.weight"):
            assert not torch.equal(tensor, whole.network.state_dict()[name]), name
    warm = recipe.updated(warm_start=True, seed=8)
    again = train(images, warm, tmp_path / "warm", old=whole)
    assert again.old_fingerprint == whole.fingerprint
    return whole


@pytest.mark.slow
def test_a_network_of_the_users_trains_like_ours(four_classes, four_classes_old, tmp_path):
    check_training(four_classes, four_classes_old, OWN, tmp_path)


@pytest.mark.xdist_group("other libraries")
@pytest.mark.parametrize("name", ["vit", "resnet", "dinov2", "timm", "timm vit"])
def test_a_library_s_network_trains_like_ours(
    name, architectures, four_classes, four_classes_old, tmp_path
):
    model = check_training(four_classes, four_classes_old, architectures[name], tmp_path)
    assert model.architecture.startswith(architectures[name].split(":")[0])


@pytest.mark.slow
def test_the_command_line_trains_and_evaluates_it(photo_folder, tmp_path, capsys):
    line = ["train", photo_folder, *TINY_OPTIONS, "--device", "cpu", "--set", "epochs=1"]
    line += ["--set", "warmup_epochs=0", "--set", "refresh_epochs=[]"]
    own = ["--set", f"architecture={OWN}", "--set", "size=24x20", "--set", "fit=letterbox"]
    assert run_command(*line, *own, "--set", "dim=8", "--out", tmp_path / "old") == 0
    assert f"{OWN}, dimension 8" in capsys.readouterr().out
    options = ["--old", tmp_path / "old", "--method", "unibct", "--out", tmp_path / "new"]
    assert run_command(*line, *own, *options) == 0
    test = ["--query", tmp_path / "new", "--gallery", tmp_path / "old", "--device", "cpu"]
    assert run_command("evaluate", photo_folder, *test, "--seen-classes") == 0
    assert "new→old" in capsys.readouterr().out
    line += ["--set", "architecture=python:nowhere:net", "--out", tmp_path / "none"]
    assert run_command(*line) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: python:nowhere:net needs the Python module nowhere")
    assert error.count("\n") == 1


def test_other_first_weights_are_another_run(four_classes, tmp_path):
    recipe = SMALL.updated(architecture=OWN, size=32, weights=str(tmp_path / "w.pt"))
    network = load_own(four_classes, tmp_path)
    torch.save(network, tmp_path / "w.pt")
    with stopped_before_epoch(1):
        train(four_classes, recipe, tmp_path / "m")
    torch.save({k: v + 0.1 for k, v in network.items()}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="holds another run: its network is"):
        train(four_classes, recipe, tmp_path / "m", resume=True)


def load_own(images, folder):
    """The weights of a trained network of the user's, without its head."""
    recipe = SMALL.updated(architecture=OWN, size=32, epochs=1)
    model = train(images, recipe, folder / "first")
    return {k.removeprefix("backbone."): v for k, v in model.network.state_dict().items()}


def train_each(photos, out, *architectures):
    """Train each architecture on some photographs; the number of processes must not matter."""
    for number, name in enumerate(architectures):
        recipe = SMALL.updated(architecture=name, size=32, dim=16, lr=0.01, batch_size=24, epochs=1)
        train(open_images(photos), recipe, Path(out) / str(number))


@pytest.mark.xdist_group("other libraries")
def test_several_processes_share_the_training(architectures, photo_folder, tmp_path):
    names = [architectures["timm"], architectures["dinov2"]]
    several = ["tests.training.several_networks", photo_folder, tmp_path / "two", *names]
    done = forked_ranks(2, *several, check=False)
    assert done.returncode == 0, done.stderr
    train_each(photo_folder, tmp_path / "one", *names)
    for number in range(2):
        folders = (tmp_path / out / str(number) for out in ("one", "two"))
        one, two = (load_model(folder).network.state_dict() for folder in folders)
        for key, tensor in one.items():
            assert torch.allclose(tensor, two[key], rtol=0.02, atol=0.02), key
