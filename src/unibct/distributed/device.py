"""The device that this process computes on."""

import os

import torch

from unibct.errors import UserError


def pick_device(name: str = "auto") -> torch.device:
    """Return the device called ``name``.

    ``auto`` is a GPU if there is one, else the CPU. Each process of a machine gets its own GPU.
    """
    wants_own_gpu = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    if wants_own_gpu and local_rank() > 0:
        if local_rank() >= torch.cuda.device_count():
            raise UserError(
                f"there is no GPU for process {local_rank()} of this machine, which has "
                f"{torch.cuda.device_count()}; start one process per GPU, or use --device cpu"
            )
        return torch.device("cuda", local_rank())
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"device {name!r} cannot be used: {reason}") from error
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def local_rank() -> int:
    """Return the number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))
