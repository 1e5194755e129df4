"""The network that a recipe asks for: how it is built, what it has learnt, how it is trained."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from unibct.data.training_classes import NO_CLASSES, UNKNOWN_CLASSES, TrainingClasses
from unibct.distributed.device import seed_generators
from unibct.errors import UserError
from unibct.models.architectures import (
    RANDOM,
    Architecture,
    NetworkRequest,
    build_network,
    find_architecture,
)
from unibct.models.input import InputSpec
from unibct.models.model_folder import WEIGHTS_FILE, load_model
from unibct.training.recipe import Recipe

_FEWEST_WEIGHTS = 100  # of fewer, chance makes some alike: by 0.1 on average
_LARGEST_CORRELATION = 0.5


def recipe_architecture(recipe: Recipe) -> Architecture:
    """Return the architecture that a recipe names."""
    request = NetworkRequest(recipe.weights, recipe.download, recipe.pooling)
    return find_architecture(recipe.architecture, request)


def recipe_input(recipe: Recipe, architecture: Architecture | None = None) -> InputSpec:
    """Return the input of a recipe's network: the architecture's own, changed by the recipe.

    Who has the architecture of the recipe already gives it.
    """
    native = (architecture or recipe_architecture(recipe)).input
    changes: dict[str, Any] = {"fit": recipe.fit, "mean": recipe.mean, "std": recipe.deviation}
    if recipe.size is not None:
        changes |= dict(zip(("height", "width"), recipe.size, strict=True))
    if recipe.channels is not None and recipe.channels != native.channels:
        # One number for images with another number of channels.
        means = {"mean": float(np.mean(native.mean)), "std": float(np.mean(native.std))}
        changes["channels"] = recipe.channels
        changes |= {name: value for name, value in means.items() if changes[name] is None}
    return replace(native, **{name: value for name, value in changes.items() if value is not None})


def network_digest(architecture: Architecture) -> str | None:
    """Return a hash of what a recipe's words leave open: another library's files, first weights.

    None for a network of unibct that starts from random weights.
    """
    if architecture.config is None and architecture.start_digest is None:
        return None
    config = None if architecture.config is None else dict(architecture.config)
    text = json.dumps([architecture.name, config, architecture.start_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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
            return load_model(folder, device="cpu", with_classifier=False).training_classes
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


# How it is trained: which layers, in which number format, with which random numbers.


def freeze_layers(network: nn.Module, beginnings: Sequence[str]) -> None:
    """Take layers out of training, in place.

    ``beginnings`` are those of the layers' names, such as ``layer1`` or ``backbone.encoder``.
    """
    names = [name for name, _ in network.named_parameters()]
    for beginning in beginnings:
        if not any(_is_below(name, beginning) for name in names):
            layers = ", ".join(name for name, _ in network.named_children())
            raise UserError(
                f"freeze = {beginning}: the network has no such layer; its layers are {layers}"
            )
    for name, parameter in network.named_parameters():
        if any(_is_below(name, beginning) for beginning in beginnings):
            parameter.requires_grad_(False)


def train_mode(network: nn.Module, beginnings: Sequence[str]) -> None:
    """Put a network into training mode, except that frozen layers keep their running means."""
    network.train()
    modules = cast(Iterable[tuple[str, nn.Module]], network.named_modules())
    for name, module in modules:
        if any(_is_below(name, beginning) for beginning in beginnings):
            module.eval()


def _is_below(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(f"{beginning.rstrip('.')}.")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass in the recipe's ``precision``."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def slow_precision_note(precision: str, device: torch.device) -> str | None:
    """Say that this processor only imitates a number format, in a twelfth of the speed."""
    without_instructions = torch.backends.cpu.get_cpu_capability() == "AVX2"
    if precision == "float32" or device.type != "cpu" or not without_instructions:
        return None
    return (
        f"this processor has no instructions for {precision}: training takes about twelve times "
        "as long as with precision=float32"
    )


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Seed torch's generators for one step.

    Whatever a network draws then depends on the place in the run only. So a resumed run draws
    the same without keeping a generator's state.
    """
    place = np.random.SeedSequence([seed, epoch, step, 3, rank])
    seed_generators(int(place.generate_state(1, np.uint64)[0]))
