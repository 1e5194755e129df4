from dataclasses import replace

import numpy as np
import pytest

from unibct.benchmark.weight_tests import weight_tests
from unibct.embeddings.extraction import embed_images
from unibct.evaluation.metrics.table import measured_metrics
from unibct.evaluation.search_test import search_test
from unibct.evaluation.weight_choice import choose_weights
from unibct.models.blended_weights import blend_weights

CELL, OLD = "cells/open-class/unibct-plus/seed1", "models/old-classes-seed1"


def test_blended_weights_are_what_a_measurement_by_hand_gives(finished):
    benchmark, results = finished
    workspace = benchmark.workspace
    images = workspace.test_images
    model = blend_weights(workspace.model(OLD), workspace.model(CELL), 0.5)
    rows = embed_images(model, images).rows_of(images)
    for name, gallery in (("between→old", workspace.vectors(OLD)), ("between→between", rows)):
        stored = results.by_job[CELL]["tests"][name]
        by_hand = search_test(rows, gallery, workspace.split)
        assert stored["metrics"] == pytest.approx(measured_metrics(by_hand, [workspace.far]))
        assert (stored["alpha"], stored["chosen_on"]) == (0.5, None)


def test_the_share_is_chosen_on_validation_images(finished):
    benchmark, _ = finished
    workspace = replace(
        benchmark.workspace, grid=replace(benchmark.workspace.grid, validation="glyphs:val")
    )
    (job,) = (job for job in benchmark.jobs if job.folder == CELL)
    measured = weight_tests(workspace, job)
    images = workspace.validation_images
    choice = choose_weights(
        workspace.model(OLD), workspace.model(CELL), images, alphas=np.arange(5, 11) / 10
    )
    assert measured.alpha == pytest.approx(choice.alpha)
    assert measured.chosen_on == "glyphs:val"


@pytest.mark.parametrize("method", ["none", "procrustes"])
def test_other_cells_have_none(finished, method):
    benchmark, results = finished
    folder = f"cells/open-class/{method}/seed1"
    (job,) = (job for job in benchmark.jobs if job.folder == folder)
    assert weight_tests(benchmark.workspace, job) is None
    assert "between→old" not in results.by_job[folder]["tests"]
