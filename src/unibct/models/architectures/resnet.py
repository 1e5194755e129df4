"""Residual networks in one parametric file: ResNet, IResNet and the small one for 32×32 images.

Parameter names follow torchvision (ResNet) and InsightFace (IResNet), so that public weights
load by name.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_width, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_width, h, w) -> (batch, width, h/stride, w/stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions; the stride is on the 3×3 one."""

    expansion = 4

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        out_width = width * self.expansion
        self.conv1 = nn.Conv2d(in_width, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_width, out_width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_width, h, w) -> (batch, 4·width, h/stride, w/stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.downsample(x))


class ResNet(nn.Module):
    """ResNet with one fully connected layer to the embedding.

    Args:
        block: BasicBlock or Bottleneck.
        depths: blocks per stage.
        widths: channels per stage (before the block's expansion).
        dim: dimension of the embedding.
        channels: 1 or 3.
        small_images: (height, width) of images too small for the usual ends of the network: a
            3×3 stem with stride 2 instead of 7×7 and pooling, and the last map flattened instead
            of averaged, because where a stroke is tells characters apart.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        *,
        dim: int,
        channels: int,
        small_images: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        kernel = 3 if small_images else 7
        self.conv1 = nn.Conv2d(channels, widths[0], kernel, 2, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        in_width = widths[0]
        stages: list[nn.Module] = []
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks: list[nn.Module] = []
            for index in range(depth):
                blocks.append(block(in_width, width, 2 if stage > 0 and index == 0 else 1))
                in_width = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stage_names = [f"layer{stage + 1}" for stage in range(len(stages))]
        for name, stage in zip(self.stage_names, stages, strict=True):
            self.add_module(name, stage)
        if small_images:
            shrink = 2 ** len(widths)
            self.avgpool = nn.Identity()
            in_width *= math.prod(-(-size // shrink) for size in small_images)
        else:
            self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(in_width, dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, dim), not normalised."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stage_names:
            x = self.get_submodule(name)(x)
        return self.fc(self.avgpool(x).flatten(1))


class IBasicBlock(nn.Module):
    """InsightFace's block: normalisation first, PReLU, the stride on the second convolution."""

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_width, eps=1e-5)
        self.conv1 = nn.Conv2d(in_width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=1e-5)
        self.prelu = nn.PReLU(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width, eps=1e-5)
        self.downsample = _shortcut(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_width, h, w) -> (batch, width, h/stride, w/stride)."""
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(out)) + self.downsample(x)


class IResNet(nn.Module):
    """InsightFace's residual network for faces: no early pooling, a flattened last map.

    Args:
        depths: blocks per stage.
        dim: dimension of the embedding.
        channels: 1 or 3.
        height: of the input, a multiple of 16.
        width: of the input, a multiple of 16.
    """

    def __init__(
        self, depths: Sequence[int], *, dim: int, channels: int, height: int, width: int
    ) -> None:
        super().__init__()
        widths = (64, 128, 256, 512)
        self.conv1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64, eps=1e-5)
        self.prelu = nn.PReLU(64)
        in_width = 64
        for stage, (depth, stage_width) in enumerate(zip(depths, widths, strict=True)):
            blocks: list[nn.Module] = []
            for index in range(depth):
                blocks.append(IBasicBlock(in_width, stage_width, 2 if index == 0 else 1))
                in_width = stage_width
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.bn2 = nn.BatchNorm2d(512, eps=1e-5)
        self.fc = nn.Linear(512 * -(-height // 16) * -(-width // 16), dim)
        self.features = nn.BatchNorm1d(dim, eps=1e-5)
        self.features.weight.requires_grad_(False)  # fixed at 1, as in the original
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, dim), not normalised."""
        x = self.prelu(self.bn1(self.conv1(x)))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.features(self.fc(self.bn2(x).flatten(1)))


def _shortcut(in_width: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and in_width == width:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_width, width, 1, stride, bias=False), nn.BatchNorm2d(width, eps=1e-5)
    )
