import pytest
import torch

from unibct.models.architectures.iresnet import IResNet
from unibct.models.architectures.table import ARCHITECTURES, build_network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "millions"),
    # Published sizes: InsightFace's IResNet.
    [("iresnet18", 24.025600), ("iresnet50", 43.590848)],
)
def test_parameter_counts_are_those_of_the_field(name, millions):
    network = build_network(name, ARCHITECTURES[name].input, 512)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=2e-6)


def test_the_last_normalisation_has_no_trainable_scale():
    network = IResNet((1, 1, 1, 1), dim=7, channels=3, height=32, width=48)
    assert not network.features.weight.requires_grad
    assert (network.features.weight == 1).all()
    assert network.eval()(torch.zeros(2, 3, 32, 48)).shape == (2, 7)
