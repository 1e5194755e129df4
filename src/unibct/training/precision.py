"""The number format of the forward pass."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


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
