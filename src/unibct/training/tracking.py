"""The numbers that an epoch leaves behind, and curves to watch in TensorBoard or elsewhere."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from unibct.errors import UserError


@dataclass(frozen=True)
class EpochMetrics:
    """One row of ``metrics.csv``; the fields are its columns."""

    epoch: int  # counted from 0
    lr: float  # the learning rate of the last step
    eta: float  # the weight of the compatibility loss, 0 during the warm-up
    loss_cls: float  # the mean classification loss
    loss_comp: float  # the mean compatibility loss
    seconds: float  # of the epoch with a refresh of the method, without the validation
    images_per_second: float  # over those seconds
    # Of the network on the classes that were set aside, and of raw pixels on the same images.
    recall_at_1: float | None = None
    pixel_recall_at_1: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the columns that the epoch has."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Tracker(Protocol):
    """Something that records the points of curves; a run of Weights & Biases is one."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Add a point to each named curve."""
        ...


class Trackers:
    """Several trackers that record the same."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def log(self, values: dict[str, float], step: int) -> None:
        """Add a point to each named curve of every tracker."""
        for tracker in self._trackers:
            tracker.log(values, step)


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
