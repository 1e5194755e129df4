"""The tests of a cell with blended weights, if its model started from the old model's."""

from dataclasses import dataclass

from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import MODEL, Workspace
from unibct.embeddings.extraction import embed_images
from unibct.evaluation.blending import MIDPOINT
from unibct.evaluation.directions import direction_of
from unibct.evaluation.search_test import SearchTest, search_test
from unibct.evaluation.weight_choice import choose_weights
from unibct.models.blended_weights import blend_weights, started_from
from unibct.models.folder_files import DESCRIPTION_FILE

# Queries of the model between the old and the new one, in the old gallery and in its own.
BETWEEN_CROSS, BETWEEN_SELF = direction_of("between", "old"), direction_of("between", "between")

_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # each embeds the validation images


@dataclass(frozen=True)
class WeightTests:
    """What a model with blended weights finds.

    Attributes:
        alpha: the share of the new weights.
        chosen_on: the validation images on which the share was chosen, if there are any.
        tests: the search of the old gallery and of its own, by name.
    """

    alpha: float
    chosen_on: str | None
    tests: dict[str, SearchTest]


def weight_tests(workspace: Workspace, job: Job) -> WeightTests | None:
    """Return the tests of a cell with blended weights, or None if there is no way between models.

    The share of the new weights is chosen on the validation images, if there are any, and is the
    midpoint otherwise.

    Args:
        workspace: grid, images and folder.
        job: a cell.
    """
    if job.training is None or job.training.old is None:
        return None
    folders = (job.training.old, job.folder)
    if not all((workspace.out / name / MODEL / DESCRIPTION_FILE).is_file() for name in folders):
        return None
    old, new = (workspace.model(folder) for folder in folders)
    if not started_from(old, new):
        return None
    validation = workspace.validation_images
    if validation is None:
        alpha, model = MIDPOINT, blend_weights(old, new, MIDPOINT)
    else:
        choice = choose_weights(old, new, validation, alphas=_ALPHAS)
        alpha, model = choice.alpha, choice.model
    images, split = workspace.test_images, workspace.split
    rows = embed_images(model, images).rows_of(images)
    tests = {
        BETWEEN_CROSS: search_test(rows, workspace.vectors(job.training.old), split),
        BETWEEN_SELF: search_test(rows, rows, split),
    }
    return WeightTests(alpha, workspace.grid.validation, tests)
