"""Torch's generators of this process: ours for a block, then as the caller had left them."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def callers_generators_kept() -> Generator[None]:
    """Put torch's generators back at the end of a block: the CPU's and every GPU's."""
    before = [(generator, generator.get_state()) for generator in _generators()]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)


def seed_generators(seed: int) -> None:
    """Seed the generators that ``callers_generators_kept`` puts back, and no other."""
    for generator in _generators():
        generator.manual_seed(seed)


def _generators() -> list[torch.Generator]:
    """Return the CPU's generator, and those of GPUs that this process uses.

    ``torch.manual_seed`` seeds all GPUs, also later those that are not in use yet.
    """
    generators: list[Any] = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    if torch.backends.mps.is_available():
        generators.append(getattr(torch.mps, "_get_default_mps_generator")())  # noqa: B009
    return generators
