import pytest
import torch
from torch import nn

from tests.distributed.twins import Twins
from unibct.distributed.gradients import synced
from unibct.models.architectures import ARCHITECTURES
from unibct.models.architectures.growth import grown_state
from unibct.models.architectures.resnet import BasicBlock, Bottleneck, IResNet, ResNet


def small(block, depths, widths):
    return ResNet(block, depths, widths, dim=5, channels=2, small_images=(16, 12))


def averaging(depths, widths):
    return ResNet(BasicBlock, depths, widths, dim=5, channels=2)


def faces(depths):
    return IResNet(depths, dim=5, channels=2, height=16, width=12)


# What builds a network, and its arguments for the smaller and for the larger one (the larger one
# of "wider" has a layer that is more than twice as wide).
PAIRS = {
    "wider": (small, (BasicBlock, (1, 1), (4, 6)), (BasicBlock, (1, 1), (6, 15))),
    "deeper": (small, (BasicBlock, (1, 1), (4, 6)), (BasicBlock, (3, 2), (4, 6))),
    "wider and deeper, averaged": (averaging, ((1, 2), (4, 6)), ((2, 2), (5, 9))),
    "bottlenecks": (small, (Bottleneck, (1, 2), (4, 6)), (Bottleneck, (2, 2), (6, 7))),
    "faces": (faces, ((1, 1, 1, 1),), ((2, 1, 2, 1),)),
}


def networks(pair):
    make, *sizes = PAIRS[pair]
    return [make(*size) for size in sizes]


def trained(network):
    """Give every number of a network another value, as training would."""
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                noise = torch.rand_like(value)
                value.copy_(0.5 + noise if name.endswith("running_var") else value + 0.3 * noise)
    return network


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_the_larger_network_computes_what_the_smaller_one_computes(pair):
    torch.manual_seed(0)
    old, new = map(trained, networks(pair))
    images = torch.randn(6, 2, 16, 12)
    new.load_state_dict(grown_state(old.state_dict(), new, seed=1))
    for mode in (False, True):  # with the running means, and with those of the batch
        with torch.no_grad():
            expected, found = old.train(mode)(images), new.train(mode)(images)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    again, other = (grown_state(old.state_dict(), networks(pair)[1], seed=s) for s in (1, 2))
    weight = "layer2.0.conv1.weight"
    assert torch.equal(again[weight], grown_state(old.state_dict(), new, seed=1)[weight])
    if "wider" in pair:
        assert not torch.equal(again[weight], other[weight])


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["wider and deeper, averaged", "bottlenecks", "faces"])
@pytest.mark.parametrize(
    "changed", [lambda network: synced(network, Twins()), nn.SyncBatchNorm.convert_sync_batchnorm]
)
def test_a_network_of_several_processes_grows_too(pair, changed):
    torch.manual_seed(0)
    old, new = networks(pair)
    new = changed(new)
    new.load_state_dict(grown_state(trained(old).state_dict(), new, seed=1))
    images = torch.randn(6, 2, 16, 12)
    with torch.no_grad():
        expected, found = old.eval()(images), new.eval()(images)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_copies_learn_different_things():
    torch.manual_seed(0)
    old, new = networks("wider")
    new.load_state_dict(grown_state(old.state_dict(), new, seed=0))
    originals = [row.tolist() for row in new.conv1.weight[:4]]
    copies = [row for row in range(4, 6) if new.conv1.weight[row].tolist() in originals]
    assert copies == [4, 5]
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    new(torch.randn(6, 2, 16, 12)).square().mean().backward()
    optimizer.step()
    for copy in copies:
        weights = new.conv1.weight.detach()
        difference = (weights[:4] - weights[copy]).abs().amax(dim=(1, 2, 3))
        assert float(difference.min()) > 1e-6


def test_a_block_that_adds_nothing_can_learn():
    torch.manual_seed(0)
    old, new = networks("deeper")
    new.load_state_dict(grown_state(old.state_dict(), new, seed=0))
    added = new.get_submodule("layer1.2")
    assert isinstance(added, BasicBlock)
    assert not added.bn2.weight.any()
    new(torch.randn(6, 2, 16, 12)).square().mean().backward()
    assert added.bn2.weight.grad is not None
    assert float(added.bn2.weight.grad.abs().sum()) > 0


def test_the_table_names_what_grows():
    pairs = [(name, old) for name, entry in ARCHITECTURES.items() for old in entry.grows_from]
    assert pairs == [("iresnet50", "iresnet18"), ("resnet-small-wide", "resnet-small")]
    for larger, smaller in pairs:
        entries = [ARCHITECTURES[name] for name in (smaller, larger)]
        assert entries[0].larger == larger
        with torch.device("meta"):  # names and shapes, without the numbers
            old, new = (entry.build(entry.input, 128) for entry in entries)
        assert type(old) is type(new)
        assert set(old.state_dict()) <= set(new.state_dict())
        for name, value in old.state_dict().items():
            shape = new.state_dict()[name].shape
            assert all(a <= b for a, b in zip(value.shape, shape, strict=True)), name
            if isinstance(old, IResNet):
                assert shape == value.shape
