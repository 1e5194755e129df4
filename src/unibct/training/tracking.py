"""The numbers that an epoch leaves behind, and the file ``metrics.csv`` with a row for each."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from unibct.errors import UserError
from unibct.files import write_text

METRICS_FILE = "metrics.csv"


@dataclass(frozen=True)
class EpochMetrics:
    """One row of ``metrics.csv``; the fields are its columns.

    Attributes:
        epoch: counted from 0.
        lr: the learning rate of the last step.
        eta: the weight of the compatibility loss, 0 during the warm-up.
        loss_cls: the mean classification loss.
        loss_comp: the mean compatibility loss.
        seconds: how long the epoch took, with a refresh of the method, without the validation.
        images_per_second: over those seconds.
        recall_at_1: of the network on the classes that were set aside; None if there are none.
        pixel_recall_at_1: of raw pixels on the same images.
    """

    epoch: int
    lr: float
    eta: float
    loss_cls: float
    loss_comp: float
    seconds: float
    images_per_second: float
    recall_at_1: float | None = None
    pixel_recall_at_1: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the columns that the epoch has."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def write_metrics(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write ``metrics.csv`` with the epochs so far; without any, write nothing."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / METRICS_FILE, text.getvalue())


# Curves of a training run, to watch in TensorBoard or in any other tracker.


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
