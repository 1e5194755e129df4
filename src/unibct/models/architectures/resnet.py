"""Networks: ResNet, IResNet, projections of finished vectors, and a head on others' backbones.

Names of parameters follow torchvision (ResNet) and InsightFace (IResNet), so that public weights
load by name.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from unibct.errors import UserError, first_line
from unibct.models.input import InputSpec
from unibct.models.model import evaluating
from unibct.models.model_folder import load_weights, read_weights, weight_files


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
    """A ResNet (He et al., 2016) with one fully connected layer to the embedding.

    ``depths`` are blocks per stage, ``widths`` channels per stage before the block's expansion.
    With ``small_images``, (height, width) of some 32×32 pixels, it starts with a 3×3 convolution of
    stride 2 instead of 7×7 and pooling, and flattens its last map instead of averaging it, because
    the positions of strokes tell characters apart.
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
        self.stage_names = [f"layer{stage + 1}" for stage in range(len(depths))]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks: list[nn.Module] = []
            for index in range(depth):
                blocks.append(block(in_width, width, 2 if stage > 0 and index == 0 else 1))
                in_width = width * block.expansion
            self.add_module(self.stage_names[stage], nn.Sequential(*blocks))
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
    """InsightFace's residual network for aligned faces, with so many blocks per stage.

    It has no early pooling, and flattens its last map.
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


class VectorNetwork(nn.Module):
    """Layers on finished vectors, images of one row: (batch, 1, 1, input dim) -> (batch, dim).

    The vectors have length 1; they are scaled to a mean square of 1 first.
    """

    def __init__(self, input_dim: int, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self._factor = math.sqrt(input_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the embeddings, not normalised."""
        return self.layers(self._factor * vectors.flatten(1))


def projection(hidden: int = 0) -> Callable[[InputSpec, int], nn.Module]:
    """Return what builds one layer, or two with a ReLU and so many units per input dimension."""

    def build(spec: InputSpec, dim: int) -> nn.Module:
        width = spec.height * spec.width * spec.channels
        if not hidden:
            return VectorNetwork(width, nn.Linear(width, dim))
        units = hidden * width
        layers = [nn.Linear(width, units), nn.BatchNorm1d(units), nn.ReLU(), nn.Linear(units, dim)]
        return VectorNetwork(width, nn.Sequential(*layers))

    return build


# Other people's backbones, with pooling and a projection to the wanted dimension.

Pool = Callable[[nn.Module, Tensor], Tensor]


class EmbeddingNetwork(nn.Module):
    """A backbone, its pooling, and a linear layer to the embedding.

    If the backbone gives vectors of the wanted dimension, there is no linear layer, so that
    weights that others have trained embed as they did. ``pool`` calls the backbone with a batch of
    images and returns (batch, features).
    """

    def __init__(self, backbone: nn.Module, pool: Pool, features: int, dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        self._pool = pool
        self.head = nn.Identity() if features == dim else nn.Linear(features, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) -> (batch, dim), not normalised."""
        return self.head(self._pool(self.backbone, x))


def embedding_network(
    name: str, backbone: nn.Module, pool: Pool, spec: InputSpec, dim: int, *, sizes: str = ""
) -> EmbeddingNetwork:
    """Put a head on a backbone, after a trial with one image of ``spec``.

    Messages call it ``name``, and say which images it can take: ``sizes``.
    """
    backbone.float()
    return EmbeddingNetwork(backbone, pool, feature_count(name, backbone, pool, spec, sizes), dim)


def feature_count(
    name: str, backbone: nn.Module, pool: Pool, spec: InputSpec, sizes: str = ""
) -> int:
    """Return the dimension of a backbone's pooled output, or say why it cannot take the images."""
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    image = torch.linspace(-1, 1, spec.channels * spec.height * spec.width, device=device)
    image = image.view(1, spec.channels, spec.height, spec.width)
    try:
        with evaluating(backbone), torch.no_grad():
            output: Any = pool(backbone, image)
            again: Any = pool(backbone, image)
    except UserError:
        raise
    except Exception as error:  # a network may raise anything about a shape that it cannot take
        raise UserError(
            f"{name} cannot take images of {spec.height}x{spec.width} with {spec.channels} "
            f"channels{f'; it takes {sizes}' if sizes else ''} ({first_line(error)})"
        ) from error
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != 1 or not output.numel():
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(f"{name} gives {shape} for one image, not one vector")
    if not output.is_meta and not torch.allclose(output, again, rtol=1e-3, atol=1e-5):
        raise UserError(f"{name} gives another vector each time that it sees the same image")
    return output.shape[1]


def pooled(output: Tensor) -> Tensor:
    """Return (batch, features): the mean over tokens or positions, if there are any.

    An output is (batch, features), (batch, tokens, features) or (batch, features, height, width).
    """
    if output.ndim == 4:
        return output.mean(dim=(2, 3))
    return output.mean(dim=1) if output.ndim == 3 else output


def load_backbone(network: nn.Module, *, place: str) -> None:
    """Load the weights of a file or folder into the backbone of an ``EmbeddingNetwork``."""
    assert isinstance(network, EmbeddingNetwork)
    backbone, tensors = network.backbone, read_weights(weight_files(place))
    load_weights(backbone, tensors, place, removed=_removed_classifier(backbone))


def _removed_classifier(backbone: nn.Module) -> tuple[str, ...]:
    """Return how the names of a classifier begin that may have been taken off a backbone."""
    layers = cast(Iterable[tuple[str, nn.Module]], backbone.named_modules())
    names = [name for name, layer in layers if isinstance(layer, nn.Identity)]
    its_config: Any = getattr(backbone, "pretrained_cfg", None) or {}  # of timm's networks
    stated: Any = its_config.get("classifier")
    if stated is not None:  # only there: identities elsewhere stand for layers of other variants
        stated = [stated] if isinstance(stated, str) else list(stated)
        parts = {name.split(".")[0] for name in stated}
        names = stated + [name for name in names if name.split(".")[0] in parts]
    return tuple(f"{name}." for name in names)
