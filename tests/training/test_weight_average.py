import numpy as np
import pytest
import torch
from torch import nn

from tests.training.recipes import RECIPE
from unibct.models.folder import load_model
from unibct.training import run_folder
from unibct.training.checkpoints import find_checkpoint, read_checkpoint
from unibct.training.train import train
from unibct.training.weight_average import WeightAverage


def test_it_is_the_naive_average():
    rng = np.random.default_rng(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    classes = torch.zeros(4, 3)
    average = WeightAverage(network, classes, 0.6)
    expected = {k: v.clone().double() for k, v in network.state_dict().items()}
    expected_classes = np.zeros((4, 3))
    for updates in range(8):
        with torch.no_grad():
            for tensor in [*network.parameters(), network[1].running_mean, classes]:
                tensor.copy_(torch.from_numpy(rng.normal(size=tuple(tensor.shape))))
            network[1].num_batches_tracked += 1
        average.update(network, classes, updates)
        decay = min(0.6, (1 + updates) / (10 + updates))
        for key, value in network.state_dict().items():
            expected[key] = decay * expected[key] + (1 - decay) * value.double()
        expected_classes = decay * expected_classes + (1 - decay) * classes.numpy()
    found = average.network.state_dict()
    assert int(found.pop("1.num_batches_tracked")) == 8
    for key, value in found.items():
        assert torch.allclose(value.double(), expected[key], atol=1e-6), key
    assert np.allclose(average.class_weights, expected_classes, atol=1e-6)
    assert not average.network.training


@pytest.mark.slow
def test_the_model_has_the_averaged_weights(four_classes, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "remove_checkpoints", lambda folder: None)
    model = train(four_classes, RECIPE.updated(average=0.9), tmp_path / "m", device="cpu")
    plain = train(four_classes, RECIPE, tmp_path / "n", device="cpu")
    tensors = read_checkpoint(find_checkpoint(tmp_path / "m")).tensors
    for key, value in load_model(tmp_path / "m").network.state_dict().items():
        assert torch.equal(value, tensors[f"average.{key}"])
    # The average follows training, and does not change it.
    for key, value in plain.network.state_dict().items():
        assert torch.equal(value, tensors[f"network.{key}"])
    assert model.fingerprint != plain.fingerprint


def test_a_weight_that_two_layers_share_moves_once():
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    network[1].weight = network[0].weight
    nn.init.zeros_(network[0].weight)
    average = WeightAverage(network, torch.zeros(1, 2), decay=0.75)
    nn.init.ones_(network[0].weight)
    average.update(network, torch.ones(1, 2), updates=1000)
    assert torch.allclose(average.network[1].weight, torch.tensor(0.25))
