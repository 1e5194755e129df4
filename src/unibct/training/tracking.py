"""Curves of a training run, to watch in TensorBoard or in any other tracker."""

from pathlib import Path
from typing import Any, Protocol

from unibct.errors import UserError


class Tracker(Protocol):
    """Something that records the points of curves; a run of Weights & Biases is one."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Add a point to each named curve."""
        ...


def require_tensorboard() -> Any:
    """Return the class that writes event files, or explain how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "TensorBoard is not installed; install it with: pip install 'unibct[track]'"
        ) from error
    return SummaryWriter


class TensorBoard:
    """A writer of event files, which ``tensorboard --logdir FOLDER`` shows."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        # Hide the points that a stopped run wrote after its last checkpoint.
        self._writer: Any = require_tensorboard()(str(folder), purge_step=first_step or None)

    def log(self, values: dict[str, float], step: int) -> None:
        """Add a point to each named curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write the remaining points and close the file."""
        self._writer.close()
