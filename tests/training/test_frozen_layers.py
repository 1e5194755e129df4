import pytest
import torch

from tests.training.recipes import RECIPE
from unibct.errors import UserError
from unibct.models.architectures.table import ARCHITECTURES, build_network
from unibct.training.frozen_layers import freeze_layers, train_mode
from unibct.training.train import train


def test_frozen_layers_stay_as_they_were(four_classes, tmp_path):
    frozen = ("conv1", "bn1", "layer1")
    recipe = RECIPE.updated(freeze=frozen, seed=5, size=None)
    model = train(four_classes, recipe, tmp_path / "m", device="cpu")
    first = build_network("resnet-small", ARCHITECTURES["resnet-small"].input, model.dim, seed=5)
    for name, value in first.state_dict().items():
        kept = name.split(".")[0] in frozen
        assert torch.equal(model.network.state_dict()[name], value) == kept, name


def test_a_layer_is_its_whole_name():
    network = torch.nn.Sequential()
    network.add_module("layer1", torch.nn.BatchNorm1d(2))
    network.add_module("layer10", torch.nn.BatchNorm1d(2))
    freeze_layers(network, ["layer1"])
    assert [p.requires_grad for p in network.parameters()] == [False, False, True, True]
    train_mode(network, ["layer1"])
    assert [layer.training for layer in network] == [False, True]
    with pytest.raises(UserError, match=r"freeze = layer2: .* its layers are layer1, layer10"):
        freeze_layers(network, ["layer2"])
