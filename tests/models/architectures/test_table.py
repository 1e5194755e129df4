import pytest
import torch

from unibct.errors import UserError
from unibct.models.architectures.table import ARCHITECTURES, build_network, find_architecture
from unibct.models.input import InputSpec


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_its_dimension(name):
    architecture = ARCHITECTURES[name]
    spec = architecture.input
    network = build_network(name, spec, architecture.dim)
    network.train()
    out = network(torch.randn(2, spec.channels, spec.height, spec.width))
    assert out.shape == (2, architecture.dim)
    assert (spec.height, architecture.dim) == ((112, 512) if "small" not in name else (32, 128))
    out.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None or not parameter.requires_grad, name


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("height", "width", "channels"), [(40, 24, 1), (9, 33, 3), (1, 1, 3)])
def test_every_architecture_takes_every_size(name, height, width, channels):
    if "50" in name and height > 1:
        return  # the same classes, deeper
    network = build_network(name, InputSpec(height, width, channels), 8).eval()
    assert network(torch.zeros(2, channels, height, width)).shape == (2, 8)


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
