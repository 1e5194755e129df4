"""Curves of a training run, for those who watch it in TensorBoard."""

from pathlib import Path
from typing import Any, Protocol

from unibct.errors import UserError


class Tracker(Protocol):
    """Takes points of curves."""

    def log(self, values: dict[str, float], step: int) -> None:
        """A point of each named curve at a step."""
        ...


def require_tensorboard() -> Any:
    """What writes event files; an error says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "TensorBoard is not installed; install it with: pip install 'unibct[track]'"
        ) from error
    return SummaryWriter


class TensorBoard:
    """Writes event files; ``tensorboard --logdir FOLDER`` shows them."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        # What a stopped run wrote after its last checkpoint is not shown.
        self._writer: Any = require_tensorboard()(str(folder), purge_step=first_step or None)

    def log(self, values: dict[str, float], step: int) -> None:
        """A point of each named curve at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
