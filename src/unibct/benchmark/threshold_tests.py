"""The tests of a benchmark's cell at the old system's threshold, which nobody sets again.

What a threshold accepts is computed in ``evaluation/old_threshold.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unibct.arrays import Floats
from unibct.benchmark.cell_choices import validation_vectors
from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import MODEL, Workspace
from unibct.data.loader import unread_pixels
from unibct.embeddings.score_scale import NoScoreScaleError, score_scale
from unibct.evaluation.acceptance import Acceptance
from unibct.evaluation.bootstrap import ClassDraws
from unibct.evaluation.metrics.verification import strict_threshold
from unibct.evaluation.old_threshold import accepted_at, old_scale_maps
from unibct.evaluation.search_test import SearchTest
from unibct.models.folder_files import DESCRIPTION_FILE
from unibct.training.measured_score_scale import with_score_scale

AT_OLD_THRESHOLD = "at_old_threshold"  # the entry of a cell's result
TAR, FAR = "TAR", "FAR"
SCORE_SCALE = "score scale"


def threshold_name(way: str) -> str:
    """Return what to call scores at the old threshold in the place of a test.

    Args:
        way: whose scores, such as ``scaled``; see ``evaluation/old_threshold.py``.
    """
    return f"{way} at old threshold"


@dataclass(frozen=True)
class AtThreshold:
    """A cell's tests at the threshold that gives the old system a false accept rate.

    Attributes:
        old_self: old queries in the old gallery.
        cross: new queries in the old gallery.
        far: the false accept rate.
        score_scale: the new model's; None if it has none.
    """

    old_self: SearchTest
    cross: SearchTest
    far: float
    score_scale: float | None

    @cached_property
    def threshold(self) -> float:
        """The old system's threshold."""
        return strict_threshold(self.old_self.impostor, self.far)

    @cached_property
    def accepted(self) -> Mapping[str, Acceptance]:
        """What the threshold accepts, by whose scores are compared with it."""
        maps = old_scale_maps(self.old_self, self.cross, score_scale=self.score_scale)
        acceptances = accepted_at(self.old_self, self.cross, [self.threshold], maps)
        return {way: entries[0] for way, entries in acceptances.items()}

    def measured(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {
            "far": self.far,
            "threshold": self.threshold,
            "score_scale": self.score_scale,
            "ways": {way: {TAR: one.tar, FAR: one.far} for way, one in self.accepted.items()},
        }

    def sampled(self, draws: ClassDraws) -> dict[str, dict[str, Floats]]:
        """Return (repeats,) of each of the values, for drawn classes; the threshold stays."""
        return {
            way: {TAR: one.sampled_tar(draws), FAR: one.sampled_far(draws)}
            for way, one in self.accepted.items()
        }


def cell_score_scale(workspace: Workspace, job: Job) -> float | None:
    """Return the score scale of a cell's model.

    It is measured on the validation images, if there are any: no model was trained on their
    classes. Otherwise it is the model's own; that of an earlier version's model is measured now.
    None if there is no such scale, or if the cell's model is not made for the old one, or is no
    longer there.
    """
    part, old = "", None
    if job.training is not None:
        part, old = job.training.part, job.training.old
    elif job.map_fitting is not None:
        part, old = job.map_fitting.part, job.map_fitting.old
    if old is None or not (workspace.out / job.folder / MODEL / DESCRIPTION_FILE).is_file():
        return None
    validation = workspace.validation_images
    if validation is not None:
        new_vectors, old_vectors = (
            validation_vectors(workspace, folder, validation) for folder in (job.folder, old)
        )
        try:
            return score_scale(new_vectors, old_vectors, validation.labels)
        except NoScoreScaleError:
            return None
    model = workspace.model(job.folder)
    if model.score_scale is None:
        pixels = unread_pixels(workspace.training_images(part, job.seed), model.input.frame)
        model = with_score_scale(model, workspace.model(old), pixels)
    return model.score_scale
