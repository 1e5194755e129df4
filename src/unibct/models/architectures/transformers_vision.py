"""`transformers:FOLDER` or `transformers:NAME`: a vision model of Hugging Face's library.

A folder is what ``save_pretrained`` writes: config.json, weights, perhaps preprocessor_config.json,
which gives size, mean and deviation. A name is looked up among the models that were downloaded
before; only with ``download=true`` is it fetched. Code that a model brings along is never run.
"""

import inspect
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from unibct.errors import UserError, first_line
from unibct.files import read_json
from unibct.models.architectures import Architecture, NetworkRequest, starting_from
from unibct.models.architectures.resnet import (
    EmbeddingNetwork,
    embedding_network,
    feature_count,
    pooled,
)
from unibct.models.input import InputSpec
from unibct.models.model_folder import (
    load_weights,
    read_weights,
    surplus_tensor,
    weight_files,
)

_DOWNLOADED = ("*.json", "*.safetensors")
_NOT_STRUCTURE = ("_name_or_path", "id2label", "label2id", "transformers_version", "architectures")
_PREFIX_TOKENS = "prefix_tokens"  # in the stored configuration, for the mean
_CLASS_TOKENS = ("cls_token", "class_embedding")
_OTHER_PREFIX_TOKENS = ("distillation_token", "register_tokens")
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


def open_architecture(reference: str, request: NetworkRequest) -> Architecture:
    """Read the configuration of a model, and find its weights."""
    folder = _folder(reference, request)
    auto_config = _library().AutoConfig
    try:
        config = auto_config.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # the library raises many kinds of errors
        raise UserError(
            f"transformers:{reference} cannot be opened: {first_line(error)}"
        ) from error
    config = getattr(config, "vision_config", config)  # of a model for images and text
    values = json.loads(config.to_json_string(use_diff=False))
    values = {key: value for key, value in values.items() if key not in _NOT_STRUCTURE}
    stored = {
        "library": f"transformers {_library().__version__}",
        "pooling": request.pooling,
        "config": values,
    }
    own_input = _own_input(folder, values)
    stored |= _pooling_words(stored, own_input)
    architecture = replace(stored_architecture(stored, own_input), dim=_own_dim(stored, own_input))
    place = request.weights
    if place is None and any(any(folder.glob(pattern)) for pattern in _WEIGHT_PATTERNS):
        place = str(folder)
    return starting_from(place, _load_start, architecture)


def stored_architecture(config: Mapping[str, Any], own_input: InputSpec) -> Architecture:
    """Return the architecture that a model folder describes."""
    name = f"transformers:{config['config']['model_type']}"

    def build(spec: InputSpec, dim: int) -> nn.Module:
        backbone = _backbone(config, spec)
        pool = _pool(backbone, config, spec)
        return embedding_network(name, backbone, pool, spec, dim, sizes=_sizes(config["config"]))

    return Architecture(build, own_input, 0, name=name, config=config)


def _library() -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise UserError(
            "architecture = transformers:… needs the library transformers: pip install 'unibct[hf]'"
        ) from error


def _folder(reference: str, request: NetworkRequest) -> Path:
    """Return the folder of a model; a name's is in the cache of Hugging Face's library."""
    folder = Path(reference).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.is_dir() or reference.startswith((".", "/", "~")):
        raise UserError(f"transformers:{reference} has no config.json; is it a model's folder?")
    _library()
    hub = import_module("huggingface_hub")
    try:
        downloaded = hub.snapshot_download(
            reference, local_files_only=not request.download, allow_patterns=list(_DOWNLOADED)
        )
    except Exception as error:  # no network, no such name, not allowed
        if request.download:
            raise UserError(f"{reference} cannot be downloaded: {first_line(error)}") from error
        raise UserError(
            f"transformers:{reference} is neither a folder with a config.json nor a model that "
            "was downloaded before; nothing is fetched unless the recipe says download = true"
        ) from error
    return Path(downloaded)


def _first_reason(error: BaseException) -> str:
    """Return in one line what went wrong first; the library hides it behind its own words."""
    while error.__cause__ is not None:
        error = error.__cause__
    reason = first_line(error)
    if "torchvision" in reason:
        reason += "; install torch and torchvision from the same index, or remove torchvision"
    return reason


def _own_dim(config: Mapping[str, Any], own_input: InputSpec) -> int:
    """Return the dimension of the backbone's output."""
    hidden = config["config"].get("hidden_size")
    if isinstance(hidden, int):
        return hidden
    with torch.device("meta"):  # shapes only
        backbone = _backbone(config, own_input)
        pool = _pool(backbone, config, own_input)
        return feature_count("the network", backbone, pool, own_input)


def _pooling_words(config: Mapping[str, Any], own_input: InputSpec) -> dict[str, int]:
    """Return what else to store about the pooling; refuse ``cls`` without a class token."""
    if config["pooling"] == "auto":
        return {}
    with torch.device("meta"):
        backbone = _backbone(config, own_input)
    if config["pooling"] == "cls" and not _token_count(backbone, _CLASS_TOKENS):
        raise UserError("pooling = cls: this network has no such token; use pooling=mean or auto")
    count = _token_count(backbone, (*_CLASS_TOKENS, *_OTHER_PREFIX_TOKENS))
    return {_PREFIX_TOKENS: count} if config["pooling"] == "mean" else {}


def _token_count(backbone: nn.Module, words: tuple[str, ...]) -> int:
    """Return how many tokens the parameters with these names put before the patches."""
    named = ((set(name.split(".")), p) for name, p in backbone.named_parameters())
    # A token in a network's head looks at the others, and is not among them.
    tokens = (p for parts, p in named if parts & set(words) and "head" not in parts)
    return sum(p.shape[-2] if p.ndim > 1 else 1 for p in tokens)


def _backbone(config: Mapping[str, Any], spec: InputSpec) -> nn.Module:
    """Build the network with random weights."""
    library = _library()
    values = dict(config["config"])
    if "num_channels" in values:
        values["num_channels"] = spec.channels
    if "mask_ratio" in values:  # of a masked auto-encoder, which would hide patches at random
        values["mask_ratio"] = 0.0
    try:
        parsed = library.AutoConfig.for_model(values.pop("model_type"), **values)
        network_class = library.AutoModel._model_mapping[type(parsed)]
        return network_class._from_config(parsed, **_without_pooling_layer(network_class))
    except Exception as error:  # the library raises many kinds of errors
        kind, version = config["config"]["model_type"], library.__version__
        raise UserError(
            f"transformers:{kind} (made by {config['library']}) cannot be built by transformers "
            f"{version}: {_first_reason(error)}"
        ) from error


def _without_pooling_layer(network_class: Any) -> dict[str, Any]:
    """Return what leaves out a pooling layer that was trained for something else, or not at all."""
    has_one = "add_pooling_layer" in inspect.signature(network_class.__init__).parameters
    return {"add_pooling_layer": False} if has_one else {}


def _pool(backbone: nn.Module, config: Mapping[str, Any], spec: InputSpec) -> Any:
    """Return the function that calls the backbone and makes one vector of its output."""
    pooling = config["pooling"]
    prefix_tokens = config.get(_PREFIX_TOKENS, 0)  # earlier models took the mean over all tokens
    options: dict[str, Any] = {}
    parameters = inspect.signature(backbone.forward).parameters
    if "interpolate_pos_encoding" in parameters:
        size: Any = getattr(cast(Any, backbone).config, "image_size", None)
        sides = (size, size) if isinstance(size, int) else tuple(size or ())
        options["interpolate_pos_encoding"] = sides != (spec.height, spec.width)

    def pool(network: nn.Module, x: Tensor) -> Tensor:
        output: Any = network(pixel_values=x, **options)
        pooler_output = getattr(output, "pooler_output", None)
        if pooling == "auto" and pooler_output is not None:
            return pooler_output.flatten(1)
        hidden: Tensor = output.last_hidden_state
        if hidden.ndim == 3 and (pooling == "cls" or (pooling == "auto" and _has_cls(network))):
            return hidden[:, 0]
        if pooling == "cls":
            raise UserError("pooling = cls: this network has no tokens; use pooling=mean or auto")
        return pooled(hidden[:, prefix_tokens:] if hidden.ndim == 3 else hidden)

    return pool


def _has_cls(network: nn.Module) -> bool:
    return any(name.split(".")[-1].startswith("cls") for name, _ in network.named_parameters())


def _load_start(network: nn.Module, *, place: str) -> None:
    """Load the weights of a file, or of a folder as the library itself would."""
    assert isinstance(network, EmbeddingNetwork)
    backbone: Any = network.backbone
    if (Path(place) / "config.json").is_file():
        backbone.load_state_dict(_pretrained(backbone, place).state_dict())
        return
    prefixes = (f"{backbone.base_model_prefix}.", "vision_model.")
    load_weights(backbone, read_weights(weight_files(place)), place, prefixes=prefixes)


def _pretrained(backbone: Any, folder: str) -> Any:
    """Return the network of a folder; the library finds its weights in those of a larger model."""
    network_class = cast(Any, type(backbone))
    options = _without_pooling_layer(network_class)
    try:
        with _silent():
            loaded, report = network_class.from_pretrained(
                folder,
                config=backbone.config,
                local_files_only=True,
                output_loading_info=True,
                dtype=torch.float32,
                **options,
            )
    except Exception as error:  # the library raises many kinds of errors
        raise UserError(f"the weights in {folder} do not fit: {first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} tensors of the network, first {missing[0]!r}: "
            "these are weights of another network"
        )
    prefix = f"{network_class.base_model_prefix}."
    unused = {name.removeprefix(prefix): name for name in sorted(report["unexpected_keys"])}
    surplus = surplus_tensor(backbone, unused)
    if surplus is not None:
        raise UserError(
            f"{folder} has a tensor {unused[surplus]!r} that this network has no place for: these "
            "are weights of a larger network"
        )
    return loaded


@contextmanager
def _silent() -> Generator[None]:
    """Keep the library from writing progress and warnings of its own."""
    logging = import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _own_input(folder: Path, config: Mapping[str, Any]) -> InputSpec:
    """Return the images that a model takes, from its preprocessor's configuration."""
    path = folder / "preprocessor_config.json"
    steps: dict[str, Any] = read_json(path) if path.is_file() else {}
    size: Any = config.get("image_size") or 224
    if steps.get("do_resize", True):
        size = steps.get("size", size)
    fit = "stretch"
    crops = bool(steps.get("do_center_crop")) or "crop_pct" in steps
    if crops or "shortest_edge" in str(size):
        fit = "crop"
        size = steps.get("crop_size", size) if crops else size
    height, width = _sides(size)
    mean, std = 0.5, 0.5
    if steps.get("do_normalize", True):
        mean, std = (steps.get(key, 0.5) for key in ("image_mean", "image_std"))
    elif steps:
        mean, std = 0.0, 1.0
    channels = config.get("num_channels", 3)
    return InputSpec(height, width, channels, _numbers(mean), _numbers(std), fit)


def _sides(size: Any) -> tuple[int, int]:
    """Return height and width of what the library may write as a size."""
    if isinstance(size, dict):
        values = cast(dict[str, int], size)
        edge = values.get("shortest_edge", 224)
        return values.get("height", edge), values.get("width", edge)
    if isinstance(size, (list, tuple)):
        height, width = cast(list[int], size)[:2]
        return height, width
    return int(size), int(size)


def _numbers(values: Any) -> Any:
    return tuple(cast(list[float], values)) if isinstance(values, list) else float(values)


def _sizes(config: Mapping[str, Any]) -> str:
    patch: Any = config.get("patch_size")
    return f"sizes from its patches of {patch} pixels up" if patch else ""
