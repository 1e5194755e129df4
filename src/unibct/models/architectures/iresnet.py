"""IResNet: InsightFace's residual network for aligned faces.

Parameter names follow InsightFace, so that public weights load by name.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from unibct.models.architectures.resnet import shortcut
from unibct.models.input import InputSpec


class IBasicBlock(nn.Module):
    """A residual block that normalises first, with PReLU; its second convolution has the stride."""

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_width, eps=1e-5)
        self.conv1 = nn.Conv2d(in_width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=1e-5)
        self.prelu = nn.PReLU(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width, eps=1e-5)
        self.downsample = shortcut(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_width, h, w) -> (batch, width, h/stride, w/stride)."""
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(out)) + self.downsample(x)


class IResNet(nn.Module):
    """A residual network without early pooling that flattens its last map.

    Args:
        depths: blocks per stage.
        dim: dimension of the embedding.
        channels: 1 or 3.
        height: height of the input.
        width: width of the input.
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
        """Map (batch, channels, height, width) -> (batch, dim), not normalised."""
        x = self.prelu(self.bn1(self.conv1(x)))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.features(self.fc(self.bn2(x).flatten(1)))


def iresnet(*depths: int) -> Callable[[InputSpec, int], nn.Module]:
    """Return a builder of IResNets with four stages of the given depths."""
    return lambda spec, dim: IResNet(
        depths, dim=dim, channels=spec.channels, height=spec.height, width=spec.width
    )
