"""ResNet (He et al., 2016) for photographs, and a small variant for images of some 32×32 pixels.

Parameter names follow torchvision, so that public weights load by name.
"""

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from unibct.models.input import InputSpec


class BasicBlock(nn.Module):
    """A residual block of two 3×3 convolutions."""

    expansion = 1

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_width, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_width, h, w) -> (batch, width, h/stride, w/stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """A residual block of 1×1, 3×3 and 1×1 convolutions; the 3×3 one has the stride."""

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
        self.downsample = shortcut(in_width, out_width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_width, h, w) -> (batch, 4·width, h/stride, w/stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.downsample(x))


class ResNet(nn.Module):
    """A ResNet with one fully connected layer to the embedding.

    Args:
        block: BasicBlock or Bottleneck.
        depths: blocks per stage.
        widths: channels per stage, before the block's expansion.
        dim: dimension of the embedding.
        channels: 1 or 3.
        small_images: (height, width) of small images. The network then starts with a 3×3
            convolution of stride 2 instead of 7×7 and pooling, and flattens its last map instead
            of averaging it, because the positions of strokes tell characters apart.
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
        """Map (batch, channels, height, width) -> (batch, dim), not normalised."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stage_names:
            x = self.get_submodule(name)(x)
        return self.fc(self.avgpool(x).flatten(1))


def shortcut(in_width: int, width: int, stride: int) -> nn.Module:
    """Return the shortcut of a residual block, a 1×1 convolution where the shape changes."""
    if stride == 1 and in_width == width:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_width, width, 1, stride, bias=False), nn.BatchNorm2d(width, eps=1e-5)
    )


def basic_resnet(*depths: int) -> Callable[[InputSpec, int], nn.Module]:
    """Return a builder of ResNets with four stages of so many basic blocks."""
    return lambda spec, dim: ResNet(
        BasicBlock, depths, (64, 128, 256, 512), dim=dim, channels=spec.channels
    )


def bottleneck_resnet(*depths: int) -> Callable[[InputSpec, int], nn.Module]:
    """Return a builder of ResNets with four stages of so many bottleneck blocks."""
    return lambda spec, dim: ResNet(
        Bottleneck, depths, (64, 128, 256, 512), dim=dim, channels=spec.channels
    )


def small_resnet(*widths: int) -> Callable[[InputSpec, int], nn.Module]:
    """Return a builder of ResNets for small images, with one block per stage."""
    return lambda spec, dim: ResNet(
        BasicBlock,
        (1,) * len(widths),
        widths,
        dim=dim,
        channels=spec.channels,
        small_images=(spec.height, spec.width),
    )
