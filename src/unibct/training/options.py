"""The options of ``train``, packed so that they travel together."""

from dataclasses import dataclass, field
from pathlib import Path

from unibct.models.embedder import Embedder
from unibct.progress import Progress, Silent
from unibct.training.tracking import Tracker


@dataclass(frozen=True)
class TrainOptions:
    """The keyword arguments of ``train``, which describes each of them."""

    old: Embedder | None = None
    method: str | None = None
    resume: bool = False
    skip_bad: bool = False
    cache: Path | None = None
    device: str = "auto"
    workers: int | None = None
    checkpoint_every: int | None = None
    tensorboard: Path | None = None
    tracker: Tracker | None = None
    validation: float | None = None
    label: str = "training"
    progress: Progress = field(default_factory=Silent)
