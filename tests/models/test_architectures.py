import pytest
import torch

from unibct.errors import UserError
from unibct.models.architectures import (
    ARCHITECTURES,
    NetworkRequest,
    build_network,
    build_without_weights,
    find_architecture,
)
from unibct.models.input import InputSpec
from unibct.training.recipe import Recipe


def test_a_recipe_asks_for_the_same_pooling_by_default():
    assert NetworkRequest().pooling == Recipe().pooling


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_its_dimension(name):
    architecture = ARCHITECTURES[name]
    spec = architecture.input
    network = build_network(name, spec, architecture.dim)
    network.train()
    out = network(torch.randn(2, spec.channels, spec.height, spec.width))
    assert out.shape == (2, architecture.dim)
    expected = {"small": (32, 128), "projection": (1, 128)}
    sizes = next((sizes for part, sizes in expected.items() if part in name), (112, 512))
    assert (spec.height, architecture.dim) == sizes
    out.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None or not parameter.requires_grad, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("height", "width", "channels"), [(40, 24, 1), (9, 33, 3), (1, 1, 3)])
def test_every_architecture_takes_every_size(name, height, width, channels):
    if "50" in name and height > 1:
        return  # the same classes, deeper
    network = build_network(name, InputSpec(height, width, channels), 8).eval()
    assert network(torch.zeros(2, channels, height, width)).shape == (2, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_loaded_weights_are_all_that_a_network_needs(name):
    architecture = find_architecture(name)
    spec = architecture.input
    whole = build_network(architecture, spec, 8, seed=3).eval()
    before = torch.random.get_rng_state()
    loaded = build_without_weights(architecture, spec, 8).eval()
    assert torch.equal(before, torch.random.get_rng_state())
    loaded.load_state_dict(whole.state_dict())
    images = torch.randn(1, spec.channels, spec.height, spec.width)
    assert torch.equal(loaded(images), whole(images))
    trained = [p.requires_grad for p in whole.parameters()]
    assert [p.requires_grad for p in loaded.parameters()] == trained


def test_names():
    with pytest.raises(UserError, match="unknown architecture 'vgg'; choose one of resnet18"):
        find_architecture("vgg")
    for architecture in ARCHITECTURES.values():
        if architecture.larger is not None:
            larger = find_architecture(architecture.larger)
            assert (larger.input, larger.dim) == (architecture.input, architecture.dim)


def test_weights_come_from_the_seed_alone():
    spec = find_architecture("resnet-small").input
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second, other = (
        build_network("resnet-small", spec, 16, seed=seed).state_dict()["fc.weight"]
        for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "iresnet18", "resnet-small"])
def test_our_networks_start_from_a_file_too(name, tmp_path):
    spec = ARCHITECTURES[name].input
    source = build_network(name, spec, 16, seed=4).state_dict()
    torch.save({"state_dict": source}, tmp_path / "w.pth")
    architecture = find_architecture(name, NetworkRequest(weights=str(tmp_path / "w.pth")))
    assert architecture.start_digest is not None
    for dim in (16, 20):  # another dimension keeps the last layer's random weights
        network = build_network(architecture, spec, dim, seed=5)
        last = network.fc.weight.clone()
        architecture.start(network)
        loaded = network.state_dict()
        assert torch.equal(loaded["conv1.weight"], source["conv1.weight"])
        assert torch.equal(loaded["fc.weight"], source["fc.weight"] if dim == 16 else last)


def test_requests_that_our_networks_cannot_meet():
    assert find_architecture("resnet18", NetworkRequest(weights="random")).start is None
    with pytest.raises(UserError, match="there is no such file or folder"):
        find_architecture("resnet18", NetworkRequest(weights="nowhere.safetensors"))
    with pytest.raises(UserError, match="resnet18 has its own; leave pooling out"):
        find_architecture("resnet18", NetworkRequest(pooling="cls"))
