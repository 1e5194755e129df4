"""`timm:NAME`: a network of the library timm, with its own pooling.

NAME is one that ``timm.list_models()`` knows. Its weights are random, from a file
(``weights=FILE``), or, only with ``download=true``, those that timm publishes.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from unibct.errors import UserError, first_line
from unibct.models.architectures import Architecture, NetworkRequest, starting_from
from unibct.models.architectures.resnet import (
    EmbeddingNetwork,
    embedding_network,
    feature_count,
    load_backbone,
    pooled,
)
from unibct.models.input import InputSpec

_FITS = {"squash": "stretch", "border": "letterbox"}  # timm's words; the others cut out the centre


def open_architecture(reference: str, request: NetworkRequest) -> Architecture:
    """Look a network up by its name."""
    library = _library()
    if not library.is_model(reference.split(".")[0]):
        close = library.list_models(f"*{reference.split('_')[0]}*")[:3]
        hint = f", such as {', '.join(close)}" if close else ""
        raise UserError(
            f"timm has no network called {reference!r}; timm.list_models() lists the names{hint}"
        )
    version = f"timm {library.__version__}"
    config = {"library": version, "pooling": request.pooling, "name": reference}
    with torch.device("meta"):  # shapes only
        try:
            network = library.create_model(reference, pretrained=False, num_classes=0)
        except Exception as error:  # what follows the point is no set of weights that timm knows
            raise UserError(
                f"timm:{reference} cannot be built: {first_line(error)}; timm.list_pretrained() "
                "lists the names with weights"
            ) from error
        own_input = _own_input(network)
        dim = _own_dim(network, request.pooling, own_input)
    architecture = replace(stored_architecture(config, own_input), dim=dim)
    if request.weights is None and request.download:
        start, digest = partial(_download, config=config), f"downloaded by {version}"
        return replace(architecture, start=start, start_digest=digest)
    return starting_from(request.weights, load_backbone, architecture)


def stored_architecture(config: Mapping[str, Any], own_input: InputSpec) -> Architecture:
    """Return the architecture that a model folder describes."""
    name = f"timm:{config['name']}"
    pool = _POOLS[config["pooling"]]

    def build(spec: InputSpec, dim: int) -> nn.Module:
        backbone = _backbone(config, spec)
        return embedding_network(name, backbone, pool, spec, dim, sizes=_sizes(backbone))

    return Architecture(build, own_input, 0, name=name, config=config)


def _library() -> Any:
    try:
        return import_module("timm")
    except ImportError as error:
        raise UserError(
            "architecture = timm:… needs the library timm: pip install 'unibct[timm]'"
        ) from error
    except RuntimeError as error:  # torchvision's own, if it was built for another torch
        raise UserError(
            f"timm cannot be imported: {first_line(error)}; install torch and torchvision from the "
            "same index"
        ) from error


def _own_dim(network: Any, pooling: str, own_input: InputSpec) -> int:
    """Return the dimension of a network's own vector; some have layers after the pooling."""
    if pooling != "auto":
        return int(network.num_features)
    try:
        return feature_count("the network", network, _own_pooling, own_input)
    except UserError:  # it cannot be run without weights
        return int(getattr(network, "head_hidden_size", None) or network.num_features)


def _own_input(network: Any) -> InputSpec:
    """Return the images that timm recommends for a network."""
    data = import_module("timm.data").resolve_model_data_config(network)
    channels, height, width = data["input_size"]
    mean, std = (tuple(float(number) for number in data[key]) for key in ("mean", "std"))
    return InputSpec(height, width, channels, mean, std, _FITS.get(data["crop_mode"], "crop"))


def _backbone(config: Mapping[str, Any], spec: InputSpec) -> nn.Module:
    """Build the network; some are built for one image size and take it as an option."""
    library = _library()
    options = {"pretrained": False, "num_classes": 0, "in_chans": spec.channels}
    size = spec.height, spec.width
    try:
        try:
            return library.create_model(config["name"], **options, img_size=size)
        except TypeError:
            return library.create_model(config["name"], **options)
    except UserError:
        raise
    except Exception as error:  # a network may raise anything about a size that it cannot take
        raise UserError(
            f"timm:{config['name']} cannot be built by timm {library.__version__} for images of "
            f"{spec.height}x{spec.width} (the model was made by {config['library']}): "
            f"{first_line(error)}"
        ) from error


def _download(network: nn.Module, *, config: Mapping[str, Any]) -> None:
    """Fetch the published weights; timm fits them to the image size and the channels."""
    assert isinstance(network, EmbeddingNetwork)
    backbone: Any = network.backbone
    size = getattr(getattr(backbone, "patch_embed", None), "img_size", None)
    options: dict[str, Any] = {} if size is None else {"img_size": size}
    channels = next(p for p in backbone.parameters() if p.ndim == 4).shape[1]
    try:
        published = _library().create_model(
            config["name"], pretrained=True, num_classes=0, in_chans=channels, **options
        )
    except Exception as error:  # no network, no weights under this name
        raise UserError(
            f"timm:{config['name']} cannot be downloaded: {first_line(error)}"
        ) from error
    backbone.load_state_dict(published.state_dict())


def _own_pooling(network: nn.Module, x: Tensor) -> Tensor:
    return network(x)


def _first_token(network: nn.Module, x: Tensor) -> Tensor:
    output = cast(Any, network).forward_features(x)
    if output.ndim != 3 or not getattr(network, "num_prefix_tokens", 0):
        raise UserError("pooling = cls: this network has no such token; use pooling=mean or auto")
    return output[:, 0]


def _mean(network: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = cast(Any, network).forward_features(x)
    if output.ndim == 3:
        output = output[:, getattr(network, "num_prefix_tokens", 0) :]
    elif output.ndim == 4 and _features_last(network, output):
        output = output.flatten(1, 2)  # (batch, positions, features)
    return pooled(output)


def _features_last(network: Any, output: Tensor) -> bool:
    """Return whether a map is (batch, height, width, features), as Swin's."""
    second, last = (output.shape[i] == network.num_features for i in (1, -1))
    return last if last != second else getattr(network, "output_fmt", None) == "NHWC"


_POOLS: dict[str, Any] = {"auto": _own_pooling, "cls": _first_token, "mean": _mean}


def _sizes(backbone: nn.Module) -> str:
    patch: Any = getattr(getattr(backbone, "patch_embed", None), "patch_size", None)
    return f"sizes that are multiples of its patches, {patch[0]}x{patch[1]}" if patch else ""
