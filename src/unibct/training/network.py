"""The network that a recipe asks for: its architecture, and the images that it takes."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np

from unibct.models.architectures.architecture import Architecture, NetworkRequest
from unibct.models.architectures.table import find_architecture
from unibct.models.input import InputSpec, PerChannel
from unibct.training.recipe import Recipe


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


def network_digest(architecture: Architecture) -> str | None:
    """Return a hash of what a recipe's words leave open: another library's files, first weights.

    None for a network of unibct that starts from random weights.
    """
    if architecture.config is None and architecture.start_digest is None:
        return None
    config = None if architecture.config is None else dict(architecture.config)
    text = json.dumps([architecture.name, config, architecture.start_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
