"""The number format of the forward pass."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from unibct.data.training_classes import NO_CLASSES, UNKNOWN_CLASSES, TrainingClasses
from unibct.distributed.device import seed_generators
from unibct.distributed.ranks import Ranks
from unibct.errors import UserError
from unibct.models.architectures import (
    RANDOM,
    Architecture,
    NetworkRequest,
    build_network,
    find_architecture,
)
from unibct.models.input import InputSpec, PerChannel
from unibct.models.model_folder import WEIGHTS_FILE, load_model
from unibct.training.recipe import Recipe


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
        "as long as with --set precision=float32"
    )


# Layers of a network that are not trained.


def freeze_layers(network: nn.Module, beginnings: Sequence[str]) -> None:
    """Take layers out of training.

    Args:
        network: changed in place.
        beginnings: of the names of the layers, such as ``layer1`` or ``backbone.encoder``.
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


# Drop-out before the head, and random numbers that depend on nothing but the place in a run.

_HEADS = ("head", "fc")  # the layer to the embedding, in the networks of others and in ours
_STEP = -0x61C8864680B583EB  # the constants of SplitMix64, as signed numbers
_MIXERS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
_BITS = 24  # of a number that decides whether an input is left out


class HeadDropout:
    """Leaves out a share of the inputs of a network's head, in training mode only.

    Which ones depends on the place in the run and in the whole batch, so that it is the same for
    any number of processes. Torch's own drop-out draws in each process apart.
    """

    def __init__(self, network: nn.Module, share: float, ranks: Ranks) -> None:
        layers = dict(network.named_children())
        head = next((layers[name] for name in _HEADS if name in layers), None)
        if head is None:
            raise UserError(f"dropout = {share}: the network has no head before which to drop")
        self._share, self._rank = share, ranks.rank
        self._key = torch.zeros((), dtype=torch.int64)  # a tensor, so that nothing compiles again
        head.register_forward_pre_hook(self._drop)

    def set_place(self, seed: int, epoch: int, step: int) -> None:
        """Say for which step of a run the next inputs are."""
        self._key = torch.tensor(_drawn([seed, epoch, step, 4], np.int64))

    def _drop(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        values: Tensor = inputs[0]
        if not layer.training:
            return (values,)
        stays = kept_inputs(self._key.to(values.device), values.shape, self._rank, self._share)
        return (values * stays / (1 - self._share),)


def kept_inputs(key: Tensor, shape: torch.Size, rank: int, share: float) -> Tensor:
    """Return which inputs stay, a tensor of ``shape``: a function of key and place in the batch.

    The number at place n is that of SplitMix64 (Steele et al., 2014) from the state ``key``, after
    n steps. No state is kept, so each process makes its own part only.

    Args:
        key: () int64, that of the step.
        shape: (own images, …); all processes have equally many.
        rank: which of the equal parts of the batch it is.
        share: of the inputs to leave out.
    """
    count = math.prod(shape)
    state = torch.arange(rank * count + 1, (rank + 1) * count + 1, device=key.device)
    state = state * _STEP + key  # int64, whose products wrap around
    for shift, factor in _MIXERS:
        state = (state ^ _shifted(state, shift)) * factor
    return (_shifted(state, 64 - _BITS) >= share * 2**_BITS).view(shape)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shift right as unsigned numbers; torch repeats the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Seed torch's generators for one step.

    Whatever a network draws then depends on the place in the run only. So a resumed run draws
    the same without keeping a generator's state.
    """
    seed_generators(_drawn([seed, epoch, step, 3, rank], np.uint64))


def _drawn(place: list[int], kind: Any) -> int:
    return int(np.random.SeedSequence(place).generate_state(1, np.uint64).astype(kind)[0])


# The network that a recipe asks for: its architecture, and the images that it takes.

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
