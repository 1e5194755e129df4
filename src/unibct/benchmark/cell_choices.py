"""What a cell chooses on validation classes: how it blends queries, and how it merges scores.

A model embeds the validation images once; the folder of its job keeps the embeddings in
``validation/``.
"""

import shutil
from dataclasses import dataclass

import numpy as np

from unibct.arrays import Floats
from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import VALIDATION, Workspace, validation_pixels
from unibct.data.image_set import ImageSet
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.folder import open_embeddings, read_description
from unibct.embeddings.layout import DESCRIPTION_FILE
from unibct.embeddings.writing import save_embeddings
from unibct.evaluation.blending import AlphaChoice, choose_alpha
from unibct.evaluation.directions import CROSS, NEW_SELF
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.search_test import search_test
from unibct.gallery.calibration import RAW, Calibration
from unibct.gallery.mixed_curve import fit_mergings, mixed_curve, score_tables


@dataclass(frozen=True)
class CellChoices:
    """What a cell has chosen.

    Attributes:
        alpha: the share of the new query in blended queries.
        mergings: kind -> how scores of old rows are put on the scale of new rows.
        merging: the kind that is best over the curve of a mixed gallery.
        means: kind -> the mean top-1 over the curve, which decided.
    """

    alpha: AlphaChoice
    mergings: dict[str, Calibration]
    merging: str
    means: dict[str, float]


def choose_for_cell(workspace: Workspace, job: Job, images: ImageSet) -> CellChoices:
    """Choose on the validation images how a cell blends queries and merges scores.

    Args:
        workspace: grid, images and folder.
        job: a cell, with a cross test and a new self test.
        images: the validation images.
    """
    tests = {test.name: test for test in job.tests}
    cross, new_self = tests[CROSS], tests[NEW_SELF]
    old_rows, new_queries = (
        validation_vectors(workspace, folder, images) for folder in (cross.gallery, cross.query)
    )
    new_rows = validation_vectors(workspace, new_self.gallery, images)
    alpha = choose_alpha(old_rows, new_queries, images.labels, chosen_on=workspace.grid.validation)
    split = split_gallery(images.labels)
    searches = (
        search_test(new_queries, old_rows, split),
        search_test(new_rows, new_rows, split),
    )
    mergings = fit_mergings(*searches)
    tables = score_tables(*searches)
    order = tables.random_order(job.seed)
    means = {
        kind: float(np.mean(mixed_curve(tables, order, calibration).top_1))
        for kind, calibration in mergings.items()
    }
    best = max(means, key=lambda kind: (round(means[kind], 12), kind == RAW))
    return CellChoices(alpha, mergings, best, means)


def validation_vectors(workspace: Workspace, folder: str, images: ImageSet) -> Floats:
    """Return (validation images, dim) embeddings by the model of a job, which keeps them.

    Args:
        workspace: grid, images and folder.
        folder: of a finished job that made a model.
        images: the validation images.
    """
    path = workspace.out / folder / VALIDATION
    pixels = validation_pixels(workspace.out)
    if (path / DESCRIPTION_FILE).is_file():
        stored, source = open_embeddings(path), read_description(path).source
        same_pixels = source in (pixels, None)  # see ``record_validation`` for None
        same_model = stored.fingerprint == workspace.embeddings(folder).fingerprint
        if same_pixels and same_model and set(images.ids) <= set(stored.ids):
            return stored.rows_of(images)
    shutil.rmtree(path, ignore_errors=True)
    embeddings = embed_images(workspace.model(folder), images)
    save_embeddings(embeddings, path, source=pixels)
    return embeddings.rows_of(images)
