"""Run the tests of a job on the embeddings of the test images.

A cell measures four things more, which train nothing: new queries at the old system's threshold,
blends of old and new queries in the old gallery, blended weights, and the gallery while it is
backfilled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Floats
from unibct.benchmark.cell_choices import CellChoices, choose_for_cell
from unibct.benchmark.jobs import Job
from unibct.benchmark.mixed_galleries import MIXED, MixedGallery, mixed_name
from unibct.benchmark.threshold_tests import (
    AT_OLD_THRESHOLD,
    AtThreshold,
    cell_score_scale,
    threshold_name,
)
from unibct.benchmark.weight_tests import BETWEEN_CROSS, weight_tests
from unibct.benchmark.workspace import Workspace
from unibct.data.training_classes import TrainingClasses
from unibct.evaluation.blending import MIDPOINT, blended_test
from unibct.evaluation.bootstrap import ClassDraws, class_draws
from unibct.evaluation.directions import BLEND, CROSS, NEW_SELF
from unibct.evaluation.flips import flip_rates, sampled_flip_rates
from unibct.evaluation.metrics.table import measured_metrics, sampled_metrics
from unibct.evaluation.resolution import carried_fars
from unibct.evaluation.search_test import SearchTest, search_test
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.gallery.calibration import RAW
from unibct.gallery.mixed_curve import fit_mergings, score_tables

SEEN = "seen_classes"  # in a result: how many test classes a model of the job was trained on


@dataclass(frozen=True)
class Measurements:
    """What a job has measured.

    Attributes:
        content: the entries of the job's result file.
        samples: the (repeats,) bootstrap values by ``sample_name``.
    """

    content: dict[str, Any]
    samples: dict[str, Floats]

    def keep_samples(self, test: str, sampled: Mapping[str, Floats]) -> None:
        """Add the bootstrap values of a test's metrics."""
        for metric, values in sampled.items():
            self.samples[sample_name(test, metric)] = values.astype(np.float32)


def sample_name(test: str, metric: str) -> str:
    """Return the name of a metric's bootstrap values in the samples file."""
    return f"{test}/{metric}"


def measure_job(workspace: Workspace, job: Job) -> Measurements:
    """Return the results of a job's tests, and the bootstrap values of their metrics."""
    tests: dict[str, dict[str, Any]] = {}
    measurements = Measurements({"tests": tests}, {})
    searches: dict[str, SearchTest] = {}
    trained: dict[str, TrainingClasses] = {}
    for name, query_job, gallery_job in job.tests:
        query, gallery = (workspace.embeddings(folder) for folder in (query_job, gallery_job))
        test = search_test(
            query.rows_of(workspace.test_images),
            gallery.rows_of(workspace.test_images),
            workspace.split,
        )
        tests[name] = {
            "query": query_job,
            "gallery": gallery_job,
            "fingerprints": [query.fingerprint, gallery.fingerprint],
            **_measured(test, workspace),
        }
        measurements.keep_samples(name, sampled_metrics(test, class_draws(test), workspace.far))
        searches[name] = test
        trained |= {query_job: query.training_classes, gallery_job: gallery.training_classes}
    images = workspace.test_images
    seen = count_seen_classes(images.class_names, images.class_source, trained)
    measurements.content[SEEN] = {"count": seen.count, "note": seen.counted}
    if CROSS in searches:
        _measure_cell(workspace, job, searches, measurements)
    return measurements


def _measured(test: SearchTest, workspace: Workspace) -> dict[str, Any]:
    fars = carried_fars(workspace.split.compared_classes)
    return {
        "metrics": measured_metrics(test, [workspace.far]),
        "tar_at_far": {f"{far:g}": test.tar(far) for far in fars},
    }


def _measure_cell(
    workspace: Workspace, job: Job, searches: Mapping[str, SearchTest], measurements: Measurements
) -> None:
    """Add flips, the old threshold, blends and mixed galleries of a cell."""
    tests, cross = measurements.content["tests"], searches[CROSS]
    draws = class_draws(cross)
    old_rows = workspace.vectors(tests[CROSS]["gallery"])
    old_self = search_test(old_rows, old_rows, workspace.split)
    tests[CROSS]["flips"] = flip_rates(old_self, cross)
    measurements.keep_samples(CROSS, sampled_flip_rates(old_self, cross, draws))
    fixed = AtThreshold(old_self, cross, workspace.far, cell_score_scale(workspace, job))
    measurements.content[AT_OLD_THRESHOLD] = fixed.measured()
    for way, sampled in fixed.sampled(draws).items():
        measurements.keep_samples(threshold_name(way), sampled)
    validation = workspace.validation_images
    choices = None if validation is None else choose_for_cell(workspace, job, validation)
    alpha = MIDPOINT if choices is None else choices.alpha.alpha
    blend = blended_test(old_self, cross, alpha)
    tests[BLEND] = {
        **{key: tests[CROSS][key] for key in ("query", "gallery", "fingerprints")},
        **_measured(blend, workspace),
        "alpha": alpha,
        "chosen_on": None if choices is None else choices.alpha.as_json(),
    }
    measurements.keep_samples(BLEND, sampled_metrics(blend, draws, workspace.far))
    _measure_weights(workspace, job, measurements, draws)
    mergings = fit_mergings(cross, searches[NEW_SELF]) if choices is None else choices.mergings
    gallery = MixedGallery(old_self, score_tables(cross, searches[NEW_SELF]), draws, workspace.far)
    order = gallery.tables.random_order(job.seed)
    measurements.content[MIXED] = {
        "chosen": RAW if choices is None else choices.merging,
        "chosen_on": _chosen_on(workspace, choices),
        "mergings": {kind: gallery.measured(order, how) for kind, how in mergings.items()},
    }
    for kind, calibration in mergings.items():
        measurements.keep_samples(mixed_name(kind), gallery.sampled(order, calibration))


def _measure_weights(
    workspace: Workspace, job: Job, measurements: Measurements, draws: ClassDraws
) -> None:
    """Add the tests of blended weights, if the cell's model started from the old one."""
    measured, tests = weight_tests(workspace, job), measurements.content["tests"]
    if measured is None:
        return
    for name, test in measured.tests.items():
        models = tests[CROSS if name == BETWEEN_CROSS else NEW_SELF]
        tests[name] = {
            **{key: models[key] for key in ("query", "gallery", "fingerprints")},
            **_measured(test, workspace),
            "alpha": measured.alpha,
            "chosen_on": measured.chosen_on,
        }
        measurements.keep_samples(name, sampled_metrics(test, draws, workspace.far))


def _chosen_on(workspace: Workspace, choices: CellChoices | None) -> dict[str, Any] | None:
    if choices is None:
        return None
    return {"data": workspace.grid.validation, "top-1 means": choices.means}
