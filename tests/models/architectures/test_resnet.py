import pytest
import torch
from torch import nn

from unibct.models.architectures.resnet import BasicBlock, ResNet, shortcut
from unibct.models.architectures.table import ARCHITECTURES, build_network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "millions"),
    # Published sizes: torchvision's ResNet less its 1000-way layer.
    [("resnet18", 11.689512 - 0.513 + 0.262656), ("resnet50", 25.557032 - 2.049 + 1.049088)],
)
def test_parameter_counts_are_those_of_the_field(name, millions):
    network = build_network(name, ARCHITECTURES[name].input, 512)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=2e-6)


@pytest.mark.parametrize(("height", "width", "cells"), [(32, 32, 16), (28, 40, 20)])
def test_small_images_keep_their_map(height, width, cells):
    network = ResNet(
        BasicBlock, (1, 1, 1), (4, 8, 16), dim=5, channels=1, small_images=(height, width)
    )
    assert network.fc.in_features == 16 * cells
    assert network.eval()(torch.zeros(2, 1, height, width)).shape == (2, 5)


def test_a_shortcut_changes_nothing_where_the_shape_stays():
    assert isinstance(shortcut(8, 8, 1), nn.Identity)
    assert shortcut(8, 16, 2)(torch.zeros(2, 8, 6, 6)).shape == (2, 16, 3, 3)
