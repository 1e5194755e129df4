"""A model's folder on disk: a description, the network's weights, the classifier, the map."""

import hashlib
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unibct.arrays import to_numpy
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses, known_source
from unibct.errors import UserError, first_line
from unibct.files import atomic_file, read_json, write_json
from unibct.maps.vector_map import VectorMap
from unibct.models.architectures.architecture import RANDOM
from unibct.models.architectures.table import build_without_weights, stored_architecture
from unibct.models.folder_files import (
    CLASSIFIER_FILE,
    DESCRIPTION_FILE,
    MAP_FILE,
    WEIGHTS_FILE,
)
from unibct.models.input import InputSpec
from unibct.models.model import Model
from unibct.models.old_space import WEIGHT, add_projection, old_space_dim

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
    (folder / DESCRIPTION_FILE).unlink(missing_ok=True)
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
        folder / DESCRIPTION_FILE,
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
    path: str | Path, *, device: str | torch.device = "cpu", with_classifier: bool = True
) -> Model:
    """Load a model from its folder, and check its weights against the stored fingerprint.

    Args:
        path: the folder.
        device: where to put the network.
        with_classifier: load the class weights too. They may be larger than the network.
    """
    folder = Path(path)
    description = _read_description(folder)
    try:
        model = _read_model(folder, description, with_classifier)
        fingerprint, classifier_digest = description["fingerprint"], description["classifier"]
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{folder / DESCRIPTION_FILE} lacks the entry {error}") from error
    except _LOADING_ERRORS as error:
        reason = first_line(error)
        raise UserError(f"{folder} cannot be loaded as a model: {reason}") from error
    _require_matching_files(folder, model, fingerprint, classifier_digest)
    return model.to(device)


def _read_description(folder: Path) -> Any:
    if not (folder / DESCRIPTION_FILE).is_file():
        raise UserError(f"{folder} is not a model folder: {_what_it_is(folder)}")
    return read_json(folder / DESCRIPTION_FILE)


def _what_it_is(folder: Path) -> str:
    """Return why a path is no model folder."""
    if not folder.exists():
        return "it does not exist"
    if not folder.is_dir():
        return "it is a file"
    if any(folder.glob("checkpoint-*")):
        return "its training has not finished; go on with `unibct train … --resume`"
    return f"there is no {DESCRIPTION_FILE} in it"


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


def _require_matching_files(
    folder: Path, model: Model, fingerprint: str, classifier_digest: str | None
) -> None:
    """Raise an error if the weights or the classifier belong to another description."""
    class_weights = model.class_weights
    if class_weights is not None and _classifier_digest(class_weights) != classifier_digest:
        raise UserError(
            f"{folder / CLASSIFIER_FILE} does not belong to {DESCRIPTION_FILE}; "
            "restore all files from one copy"
        )
    if model.fingerprint != fingerprint:
        raise UserError(
            f"{folder / WEIGHTS_FILE} does not belong to {DESCRIPTION_FILE}: the fingerprint is "
            f"{model.fingerprint} instead of {fingerprint}; restore both files from one copy"
        )


def _classifier_digest(class_weights: Tensor | None) -> str | None:
    if class_weights is None:
        return None
    return hashlib.sha256(to_numpy(class_weights).tobytes()).hexdigest()[:32]
