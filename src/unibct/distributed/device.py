"""The device that this process computes on, its copies from the host, and torch's generators."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unibct.errors import UserError, first_line


def pick_device(name: str = "auto") -> torch.device:
    """Return the device called ``name``.

    ``auto`` is a GPU if there is one, otherwise the CPU. Each process on a machine gets its own
    GPU, so a number that would put several of them on one is refused.
    """
    kind, _, number = name.partition(":")
    rank = local_rank()
    shares_machine = rank > 0 or int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    if kind == "cuda" and number.isdecimal() and int(number) != rank and shares_machine:
        raise UserError(
            f"device {name} would put all processes of this machine on one GPU; use device "
            "cuda, which gives each its own (CUDA_VISIBLE_DEVICES says which there are)"
        )
    wants_own_gpu = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    if wants_own_gpu and rank > 0:
        if rank >= torch.cuda.device_count():
            raise UserError(
                f"there is no GPU for process {rank} of this machine, which has "
                f"{torch.cuda.device_count()}; start one process per GPU, or use device cpu"
            )
        return torch.device("cuda", rank)
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError, ImportError) as error:
            reason = first_line(error)
            if reason.startswith("Expected one of"):  # torch's list has names of no use here
                reason = "choose auto, cpu, cuda, cuda:1 (a certain GPU) or mps"
            raise UserError(f"device {name!r} cannot be used: {reason}") from error
    if torch.cuda.is_available():
        return torch.device("cuda", rank)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device without waiting for the device's earlier work.

    A tensor that is on the device already is returned as it is.
    """
    # On Apple's devices, a copy in the background may read memory that is already in use again.
    return pinned(tensor, device).to(device, non_blocking=device.type != "mps")


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor in page-locked memory, from which a GPU copies in the background.

    Other devices need no such copy. May be called by any thread.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor
    with torch.cuda.device(device):  # a new thread would use the first GPU
        return tensor if tensor.is_pinned() else tensor.pin_memory()


def local_rank() -> int:
    """Return the number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


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
