"""The network that a recipe asks for: its architecture, and the images that it takes."""

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unibct.data.training_classes import NO_CLASSES, UNKNOWN_CLASSES, TrainingClasses
from unibct.errors import UserError
from unibct.models.architectures.architecture import RANDOM, Architecture, NetworkRequest
from unibct.models.architectures.table import build_network, find_architecture
from unibct.models.folder import load_model
from unibct.models.folder_files import WEIGHTS_FILE
from unibct.models.input import InputSpec, PerChannel
from unibct.training.recipe import Recipe

_FEWEST_WEIGHTS = 100  # of fewer, chance makes some alike: by 0.1 on average
_LARGEST_CORRELATION = 0.5


def recipe_architecture(recipe: Recipe) -> Architecture:
    """Return the architecture that a recipe names."""
    request = NetworkRequest(recipe.weights, recipe.download, recipe.pooling)
    return find_architecture(recipe.architecture, request)


def recipe_input(recipe: Recipe, architecture: Architecture | None = None) -> InputSpec:
    """Return the input of a recipe's network: the architecture's own, changed by the recipe.

    Args:
        recipe: the recipe; a setting that it leaves out is the architecture's own.
        architecture: what ``recipe_architecture`` returned, if the caller has it already.
    """
    native_input = (architecture or recipe_architecture(recipe)).input
    changes: dict[str, Any] = {}
    if recipe.size is not None:
        changes |= dict(zip(("height", "width"), recipe.size, strict=True))
    if recipe.fit is not None:
        changes["fit"] = recipe.fit
    if recipe.channels is not None and recipe.channels != native_input.channels:
        changes |= {
            "channels": recipe.channels,
            "mean": _one(native_input.mean),
            "std": _one(native_input.std),
        }
    if recipe.mean is not None:
        changes["mean"] = recipe.mean
    if recipe.deviation is not None:
        changes["std"] = recipe.deviation
    return replace(native_input, **changes)


def _one(values: PerChannel) -> float:
    """Return one number for images with another number of channels."""
    return float(np.mean(values))


def first_classes(recipe: Recipe) -> TrainingClasses:
    """Return the classes that the first weights of a recipe's network have learnt from.

    Those of a model folder are known, as far as it knows them; what else was not drawn at random,
    a file or what another library comes with, has learnt from nobody knows what.
    """
    architecture = recipe_architecture(recipe)
    if recipe.weights not in (None, RANDOM):
        folder = Path(recipe.weights)
        with suppress(UserError):  # not a model folder, or its files do not belong together
            folder = folder.parent if folder.name == WEIGHTS_FILE else folder
            return load_model(folder, with_classifier=False).training_classes
        return UNKNOWN_CLASSES
    is_random = architecture.start is None and _draws_all_weights(recipe, architecture)
    return NO_CLASSES if is_random else UNKNOWN_CLASSES


def _draws_all_weights(recipe: Recipe, architecture: Architecture) -> bool:
    """Return whether a network of the user's own has other weights with another seed."""
    if not architecture.name.startswith("python:"):
        return True
    spec, dim = recipe_input(recipe, architecture), recipe.dim or architecture.dim
    first, second = (
        build_network(architecture, spec, dim, seed=seed).state_dict() for seed in (0, 1)
    )
    return not any(
        tensor.is_floating_point() and _are_alike(tensor, second[name])
        for name, tensor in first.items()
    )


def _are_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two draws of a tensor have something in common; all ones or zeros have not.

    Learnt weights may have a little noise added, as a start of some recipes.
    """
    if torch.equal(first, second):
        return bool((first != first.flatten()[:1]).any())
    both = torch.stack([first.flatten(), second.flatten()]).double()
    if both.shape[1] < _FEWEST_WEIGHTS:
        return False
    return bool(torch.corrcoef(both)[0, 1] > _LARGEST_CORRELATION)


def network_digest(architecture: Architecture) -> str | None:
    """Return a hash of what a recipe's words leave open: another library's files, first weights.

    None for a network of unibct that starts from random weights.
    """
    if architecture.config is None and architecture.start_digest is None:
        return None
    config = None if architecture.config is None else dict(architecture.config)
    text = json.dumps([architecture.name, config, architecture.start_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
