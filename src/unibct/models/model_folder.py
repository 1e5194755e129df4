"""Weights in files: those that others have trained, and a model's folder.

A folder holds a description, the network's weights, the classifier and the map. Nothing but tensors
is unpickled.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from unibct.arrays import to_numpy
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses, known_source
from unibct.distributed.device import pick_device
from unibct.errors import UserError, first_line
from unibct.files import atomic_file, read_json, write_json
from unibct.maps.vector_map import VectorMap
from unibct.models.architectures import RANDOM, build_without_weights, stored_architecture
from unibct.models.input import InputSpec
from unibct.models.model import Model
from unibct.models.old_space import WEIGHT, add_projection, old_space_dim

MODEL_DESCRIPTION = "model.json"
WEIGHTS_FILE = "model.safetensors"
CLASSIFIER_FILE = "classifier.safetensors"
MAP_FILE = "adapter.safetensors"  # the word for a map in files and fingerprints of models

_TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_WRAPPERS = ("state_dict", "model", "model_state_dict")  # names under which files hide the tensors
_PREFIXES = ("module.", "backbone.", "model.")  # what wrappers put before the names


def weight_files(place: str | Path) -> list[Path]:
    """Return the files with weights: the path itself, or those in a folder.

    In a folder, safetensors files are preferred.
    """
    path = Path(place)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"weights = {place}: there is no such file or folder")
    if (path / MODEL_DESCRIPTION).is_file():  # a model folder of unibct
        return [path / WEIGHTS_FILE]
    for pattern in ("model*.safetensors", "*.safetensors", "pytorch_model*.bin"):
        files = sorted(path.glob(pattern))
        if files:
            return files
    raise UserError(f"weights = {place}: the folder has no .safetensors file")


def files_digest(files: Iterable[Path]) -> str:
    """Return a hash of the content of files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:32]


def read_weights(files: Iterable[Path]) -> dict[str, Tensor]:
    """Return the tensors in files, by name. A ``.pt`` file may contain tensors only."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors |= _read_file(path)
        except UserError:
            raise
        except Exception as error:  # a damaged file makes torch raise almost anything
            raise UserError(f"{path} cannot be read as weights: {first_line(error)}") from error
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    if path.suffix not in _TORCH_SUFFIXES:
        raise UserError(f"{path}: weights are .safetensors, {', '.join(_TORCH_SUFFIXES)} files")
    content: Any = torch.load(path, map_location="cpu", weights_only=True)
    for name in _WRAPPERS:
        if isinstance(content, dict) and isinstance(cast(Any, content).get(name), dict):
            content = cast(Any, content)[name]
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no tensors by name")
    named = cast(dict[str, Any], content)
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def load_weights(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    place: str,
    *,
    head: tuple[str, ...] = (),
    prefixes: tuple[str, ...] = (),
    removed: tuple[str, ...] = (),
) -> None:
    """Copy tensors, which come from ``place``, into a network by name.

    They may have more parts than the network, such as a classifier, but no more layers inside a
    part that the network has. Layers whose names begin as in ``head`` keep their random weights if
    the tensors lack them or have other shapes; all others must be there and fit. ``prefixes`` may
    stand before every name, besides the usual; ``removed`` is how the names of layers begin that
    were taken off the network.
    """
    wanted = {k: v for k, v in network.state_dict().items() if not _is_counter(k)}
    # Of the prefixes, that one is taken off which makes most names known.
    candidates = [tensors_under(prefix, tensors) for prefix in ("", *_PREFIXES, *prefixes)]
    named = max(candidates, key=lambda candidate: len(set(wanted) & set(candidate)))
    fitting = {k: named[k] for k, v in wanted.items() if k in named and named[k].shape == v.shape}
    for name, tensor in wanted.items():
        if name in fitting or name.startswith(head or ("\0",)):
            continue
        if name not in named:
            raise UserError(f"{place} has no tensor {name!r}: these are weights of another network")
        raise UserError(
            f"{place}: {name} has the shape {tuple(named[name].shape)}, but this network's has "
            f"{tuple(tensor.shape)}; give the size and channels that it was trained with"
        )
    surplus = surplus_tensor(network, named, (*head, *removed))
    if surplus is not None:
        raise UserError(
            f"{place} has a tensor {surplus!r} that this network has no place for: these are "
            "weights of a larger network"
        )
    network.load_state_dict(fitting, strict=False)


def surplus_tensor(
    network: nn.Module, names: Iterable[str], removed: tuple[str, ...] = ()
) -> str | None:
    """Return the first name of a layer that a part of the network would need to have; or None.

    Parts that the network lacks as a whole, such as another task's classifier, are no surplus, nor
    are tensors that a layer computes itself or needs in training only, nor names that begin as in
    ``removed``.
    """
    known = set(network.state_dict())
    modules = {name for name, _ in cast(Iterable[tuple[str, nn.Module]], network.named_modules())}
    for name in names:
        if name in known or _is_counter(name) or name.startswith(removed or ("\0",)):
            continue
        owner, _, tensor = name.rpartition(".")
        has_layer = owner in modules
        while owner not in modules:
            owner = owner.rpartition(".")[0]
        if owner and (not has_layer or tensor in ("weight", "bias")):
            return name
    return None


def tensors_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _is_counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")


FORMAT = 1
_WITH_FIRST_WEIGHTS = "with_first_weights"  # earlier versions took all weights for random ones
_OF_VECTORS = ("projection", "projection-mlp")
_NO_FURTHER_CLASSES = {"digests": (), "sources": (), "complete": True}  # of earlier versions
_LOADING_ERRORS = (
    OSError,
    TypeError,
    AttributeError,
    RuntimeError,
    safetensors.SafetensorError,
)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically; a weight that two layers share is written twice."""
    contiguous: dict[str, Tensor] = {}
    places: set[tuple[torch.device, int]] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().contiguous()
        place = (plain.device, plain.untyped_storage().data_ptr())
        contiguous[name] = plain.clone() if place in places else plain
        places.add(place)
    try:
        with atomic_file(path) as temporary:
            safetensors.torch.save_file(contiguous, temporary, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} cannot be written: {error}; is the disk full?") from error


def save_model(model: Model, folder: str | Path) -> None:
    """Write a model folder. The description is written last and makes the folder complete."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_DESCRIPTION).unlink(missing_ok=True)
    class_weights, vector_map, old_dim = model.class_weights, model.vector_map, old_space_dim(model)
    config = model.architecture_config
    optional_files = {
        CLASSIFIER_FILE: None if class_weights is None else {"class_weights": class_weights},
        MAP_FILE: None if vector_map is None else vector_map.tensors(),
    }
    save_tensors(folder / WEIGHTS_FILE, model.network.state_dict(), {"format": "pt"})
    for name, tensors in optional_files.items():
        if tensors is None:
            (folder / name).unlink(missing_ok=True)
        else:
            save_tensors(folder / name, tensors, {"format": "pt"})
    write_json(
        folder / MODEL_DESCRIPTION,
        {
            "format": FORMAT,
            "architecture": model.architecture,
            "input": model.input.description(),
            "dim": model.dim,
            "fingerprint": model.fingerprint,
            "classifier": _classifier_digest(class_weights),
            "old_model": model.old_fingerprint,
            "adapter": None if vector_map is None else vector_map.kind,
            "training": model.training,
            "classes": list(model.class_names),
            "further_classes": model.further_classes.as_json() | {_WITH_FIRST_WEIGHTS: True},
        }
        | ({} if model.class_source is None else {"class_source": model.class_source})
        | ({} if config is None else {"architecture_config": dict(config)})
        | ({} if old_dim is None else {"old_dim": old_dim}),
    )


def load_model(
    path: str | Path, *, device: str | torch.device = "auto", with_classifier: bool = True
) -> Model:
    """Load a model from its folder, and check its weights against the stored fingerprint.

    Args:
        path: the folder.
        device: where to put the network: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, …
        with_classifier: load the class weights too. They may be larger than the network.
    """
    folder = Path(path)
    if not (folder / MODEL_DESCRIPTION).is_file():
        raise UserError(f"{folder} is not a model folder: {_what_it_is(folder)}")
    description: Any = read_json(folder / MODEL_DESCRIPTION)
    try:
        model = _read_model(folder, description, with_classifier)
        fingerprint, classifier_digest = description["fingerprint"], description["classifier"]
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{folder / MODEL_DESCRIPTION} lacks the entry {error}") from error
    except _LOADING_ERRORS as error:
        raise UserError(f"{folder} cannot be loaded as a model: {first_line(error)}") from error
    class_weights = model.class_weights
    if class_weights is not None and _classifier_digest(class_weights) != classifier_digest:
        raise UserError(
            f"{folder / CLASSIFIER_FILE} does not belong to {MODEL_DESCRIPTION}; "
            "restore all files from one copy"
        )
    if model.fingerprint != fingerprint:
        raise UserError(
            f"{folder / WEIGHTS_FILE} does not belong to {MODEL_DESCRIPTION}: the fingerprint is "
            f"{model.fingerprint} instead of {fingerprint}; restore both files from one copy"
        )
    return model.to(pick_device(device) if isinstance(device, str) else device)


def _what_it_is(folder: Path) -> str:
    """Return why a path is no model folder."""
    if not folder.exists():
        return "it does not exist"
    if not folder.is_dir():
        return "it is a file"
    if any(folder.glob("checkpoint-*")):
        return "its training has not finished; go on with `unibct train … --resume`"
    return f"there is no {MODEL_DESCRIPTION} in it"


def _read_model(folder: Path, description: Any, with_classifier: bool) -> Model:
    if description["format"] != FORMAT:
        raise UserError(f"{folder} has format {description['format']}; this unibct reads {FORMAT}")
    spec = InputSpec.of_description(description["input"])
    vector_map = None
    if description.get("adapter") is not None:
        map_tensors = safetensors.torch.load_file(folder / MAP_FILE)
        vector_map = VectorMap.of_tensors(description["adapter"], map_tensors)
    network_dim = description["dim"] if vector_map is None else vector_map.new_dim
    name, config = description["architecture"], description.get("architecture_config")
    network = build_without_weights(stored_architecture(name, config, spec), spec, network_dim)
    tensors = safetensors.torch.load_file(folder / WEIGHTS_FILE)
    if WEIGHT in tensors:
        add_projection(network, network_dim, len(tensors[WEIGHT]))
    network.load_state_dict(tensors)
    class_weights = None
    if with_classifier and (folder / CLASSIFIER_FILE).is_file():
        class_weights = safetensors.torch.load_file(folder / CLASSIFIER_FILE)["class_weights"]
    return Model(
        network=network.eval(),
        architecture=name,
        input=spec,
        dim=description["dim"],
        class_names=tuple(description["classes"]),
        class_weights=class_weights,
        training=description["training"],
        old_fingerprint=description["old_model"],
        vector_map=vector_map,
        class_source=known_source(description["classes"], description.get("class_source")),
        further_classes=_further_classes(description),
        architecture_config=config,
    )


def _further_classes(description: Any) -> TrainingClasses:
    content = description.get("further_classes")
    further = TrainingClasses.of_json(_NO_FURTHER_CLASSES if content is None else content)
    if content is not None and content.get(_WITH_FIRST_WEIGHTS):
        return further
    recipe: dict[str, Any] = description["training"].get("recipe", {})
    library, weights = description["architecture"].partition(":")[0], recipe.get("weights")
    is_random = (
        weights in (None, RANDOM)
        and not recipe.get("download")
        and library not in ("python", *_OF_VECTORS)  # which bring a past along
        and (library != "transformers" or weights == RANDOM)
        and (content is not None or not recipe.get("warm_start"))
    )
    return further if is_random else further | UNKNOWN_CLASSES


def _classifier_digest(class_weights: Tensor | None) -> str | None:
    if class_weights is None:
        return None
    return hashlib.sha256(to_numpy(class_weights).tobytes()).hexdigest()[:32]
