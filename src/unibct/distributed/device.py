"""The device that this process computes on."""

import os

import torch

from unibct.errors import UserError


def pick_device(name: str = "auto") -> torch.device:
    """``auto``: a GPU if there is one (each local rank its own), else the CPU."""
    own_gpu = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    if own_gpu and local_rank() > 0:
        if local_rank() >= torch.cuda.device_count():
            raise UserError(
                f"there is no GPU for process {local_rank()} of this machine, which has "
                f"{torch.cuda.device_count()}; start one process for each, or say --device cpu"
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
    """This process's number on its machine: which GPU it takes."""
    return int(os.environ.get("LOCAL_RANK", "0"))
