"""What a job measures on the embeddings of the test images.

Every job runs its tests: a search of one model's gallery by another's queries. A cell measures four
things more, which train nothing: new queries at the old system's threshold, blends of old and new
queries in the old gallery, blended weights, and the gallery while it is backfilled. What has to be
chosen for these is chosen on the validation images, whose classes no model has seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import Workspace
from unibct.data.training_classes import TrainingClasses
from unibct.embeddings.extraction import embed
from unibct.embeddings.score_scale import NoScoreScaleError, score_scale
from unibct.evaluation.blending import MIDPOINT, AlphaChoice, blended_test, choose_alpha
from unibct.evaluation.bootstrap import ClassDraws, class_draws, sampled_mean
from unibct.evaluation.metrics import TOP_1, measured_metrics, sampled_metrics
from unibct.evaluation.mixed_gallery import MixedScores, fitted_kinds, shares_of
from unibct.evaluation.old_threshold import (
    Acceptance,
    accepted_at,
    flip_rates,
    old_scale_maps,
    sampled_flip_rates,
)
from unibct.evaluation.score_map import RAW, STANDARDISED, ScoreMap
from unibct.evaluation.search_test import (
    BLEND,
    CROSS,
    NEW_SELF,
    Direction,
    SearchTest,
    search_test,
)
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.verification import carried_fars, strict_threshold, tar_name
from unibct.evaluation.weight_choice import choose_weights
from unibct.models.blended_weights import blend_weights, started_from

# Entries of a job's result file.
SEEN = "seen_classes"  # how many test classes a model of the job was trained on
AT_OLD_THRESHOLD, MIXED = "at_old_threshold", "mixed_galleries"
MERGINGS = (RAW, STANDARDISED)  # the ways of merging scores in a mixed gallery that are compared
# What is measured of a mixed gallery and at the old threshold, by its name in results.
MEAN, BELOW_START, BELOW_LINE = "top-1 mean", "top-1 dip below start", "top-1 dip below line"
HALF_TOP_1, HALF_NFR = "top-1 at half", "nfr at half"
TAR, FAR, SCORE_SCALE = "TAR", "FAR", "score scale"
# Queries of the model between the old and the new one, in the old gallery and in its own.
BETWEEN_CROSS, BETWEEN_SELF = Direction("between", "old"), Direction("between", "between")
_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # each embeds the validation images


def mixed_name(merging: str) -> str:
    """Return what a mixed gallery is called in the place of a test, such as ``mixed raw``."""
    return f"mixed {merging}"


def threshold_name(way: str) -> str:
    """Return what scores at the old threshold are called in the place of a test.

    ``way`` says whose scores, such as ``scaled``; see ``evaluation/old_threshold.py``.
    """
    return f"{way} at old threshold"


def half_tar(far: float) -> str:
    """Return the name of the TAR in a half-backfilled gallery."""
    return f"{tar_name(far)} at half"


def sample_name(test: str, metric: str) -> str:
    """Return the name of a metric's bootstrap values in the samples file."""
    return f"{test}/{metric}"


@dataclass(frozen=True)
class Measurements:
    """What a job has measured."""

    content: dict[str, Any] = field(default_factory=dict[str, Any])  # of its result file
    # The (repeats,) bootstrap values by ``sample_name``.
    samples: dict[str, Floats] = field(default_factory=dict[str, Floats])

    def keep_samples(self, test: str, sampled: Mapping[str, Floats]) -> None:
        """Add the bootstrap values of a test's metrics."""
        for metric, values in sampled.items():
            self.samples[sample_name(test, metric)] = values.astype(np.float32)


def measure_job(workspace: Workspace, job: Job) -> Measurements:
    """Return the results of a job's tests, and the bootstrap values of their metrics."""
    tests: dict[str, dict[str, Any]] = {}
    measurements = Measurements({"tests": tests})
    searches: dict[str, SearchTest] = {}
    trained: dict[str, TrainingClasses] = {}
    images = workspace.test_images
    for name, query_job, gallery_job in job.tests:
        query, gallery = (workspace.embeddings(folder) for folder in (query_job, gallery_job))
        test = search_test(query.rows_of(images), gallery.rows_of(images), workspace.split)
        tests[name] = {
            "query": query_job,
            "gallery": gallery_job,
            "fingerprints": [query.fingerprint, gallery.fingerprint],
            **_measured(test, workspace),
        }
        measurements.keep_samples(name, sampled_metrics(test, class_draws(test), workspace.far))
        searches[name] = test
        trained |= {query_job: query.training_classes, gallery_job: gallery.training_classes}
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
    content, tests = measurements.content, measurements.content["tests"]
    cross, new_self = searches[CROSS], searches[NEW_SELF]
    draws = class_draws(cross)
    old_rows = workspace.vectors(tests[CROSS]["gallery"])
    old_self = search_test(old_rows, old_rows, workspace.split)

    def add_blend(name: str, test: SearchTest, models_of: str, alpha: float, chosen: Any) -> None:
        models = {key: tests[models_of][key] for key in ("query", "gallery", "fingerprints")}
        tests[name] = models | _measured(test, workspace) | {"alpha": alpha, "chosen_on": chosen}
        measurements.keep_samples(name, sampled_metrics(test, draws, workspace.far))

    tests[CROSS]["flips"] = flip_rates(old_self, cross)
    measurements.keep_samples(CROSS, sampled_flip_rates(old_self, cross, draws))
    fixed = AtThreshold(old_self, cross, workspace.far, cell_score_scale(workspace, job))
    content[AT_OLD_THRESHOLD] = fixed.measured()
    for way, sampled in fixed.sampled(draws).items():
        measurements.keep_samples(threshold_name(way), sampled)

    choices = choose_for_cell(workspace, job)
    alpha = MIDPOINT if choices is None else choices.alpha.alpha
    chosen = None if choices is None else choices.alpha.as_json()
    add_blend(BLEND, blended_test(old_self, cross, alpha), CROSS, alpha, chosen)
    between = weight_tests(workspace, job)
    if between is not None:
        for name, test in between.tests.items():
            models_of = CROSS if name == BETWEEN_CROSS else NEW_SELF
            add_blend(name, test, models_of, between.alpha, workspace.grid.validation)

    mergings, chosen_on = fitted_kinds(MERGINGS, cross.pairs, new_self.pairs), None
    gallery = MixedGallery(old_self, MixedScores.of_tests(cross, new_self), draws, workspace.far)
    order = gallery.scores.random_order(job.seed)
    if choices is not None:
        mergings = choices.mergings
        chosen_on = {"data": workspace.grid.validation, "top-1 means": choices.means}
    content[MIXED] = {
        "chosen": RAW if choices is None else choices.merging,
        "chosen_on": chosen_on,
        "mergings": {kind: gallery.measured(order, how) for kind, how in mergings.items()},
    }
    for kind, calibration in mergings.items():
        measurements.keep_samples(mixed_name(kind), gallery.sampled(order, calibration))


# What a cell chooses on the validation images.


@dataclass(frozen=True)
class CellChoices:
    """How a cell blends queries and merges scores."""

    alpha: AlphaChoice  # the share of the new query in blended queries
    mergings: dict[str, ScoreMap]  # kind -> how scores of old rows are put on the new scale
    merging: str  # the kind that is best over the curve of a mixed gallery
    means: dict[str, float]  # kind -> the mean top-1 over the curve, which decided


def choose_for_cell(workspace: Workspace, job: Job) -> CellChoices | None:
    """Choose how a cell blends queries and merges scores; None without validation images."""
    images = workspace.validation_images
    if images is None:
        return None
    tests = {test.name: test for test in job.tests}
    cross, new_self = tests[CROSS], tests[NEW_SELF]
    old_rows, new_queries, new_rows = map(
        workspace.validation_vectors, (cross.gallery, cross.query, new_self.gallery)
    )
    alpha = choose_alpha(
        images.labels, old=old_rows, new=new_queries, chosen_on=workspace.grid.validation
    )
    split = split_gallery(images.labels)
    searches = (
        search_test(new_queries, old_rows, split),
        search_test(new_rows, new_rows, split),
    )
    mergings = fitted_kinds(MERGINGS, *(test.pairs for test in searches))
    scores = MixedScores.of_tests(*searches)
    order = scores.random_order(job.seed)
    means = {
        kind: float(scores.right(order, calibration).mean(axis=0).mean())
        for kind, calibration in mergings.items()
    }
    best = max(means, key=lambda kind: (round(means[kind], 12), kind == RAW))
    return CellChoices(alpha, mergings, best, means)


def cell_score_scale(workspace: Workspace, job: Job) -> float | None:
    """Return the score scale of a cell's model; None if it has none, or is made for no old one.

    It is measured on the validation images, if there are any: no model was trained on their
    classes. Otherwise it is the model's own.
    """
    making = job.training or job.map_fitting
    if making is None or making.old is None:
        return None
    images = workspace.validation_images
    if images is None:
        return workspace.model(job.folder).score_scale
    new_vectors, old_vectors = map(workspace.validation_vectors, (job.folder, making.old))
    try:
        return score_scale(new_vectors, old_vectors, images.labels)
    except NoScoreScaleError:
        return None


@dataclass(frozen=True)
class WeightTests:
    """What a model with blended weights finds."""

    alpha: float  # the share of the new weights
    tests: dict[str, SearchTest]  # the search of the old gallery and of its own, by name


def weight_tests(workspace: Workspace, job: Job) -> WeightTests | None:
    """Return the tests of a cell with blended weights, or None if there is no way between models.

    There is one if the new model started from the old one's weights. The share of the new weights
    is chosen on the validation images, if there are any, and is the midpoint otherwise.
    """
    if job.training is None or job.training.old is None:
        return None
    old, new = (workspace.model(folder) for folder in (job.training.old, job.folder))
    if not started_from(old, new):
        return None
    validation = workspace.validation_images
    if validation is None:
        alpha, model = MIDPOINT, blend_weights(old, new, MIDPOINT)
    else:
        choice = choose_weights(validation, old=old, new=new, alphas=_ALPHAS)
        alpha, model = choice.alpha, choice.model
    images, split = workspace.test_images, workspace.split
    rows = embed(model, images).rows_of(images)
    tests: dict[str, SearchTest] = {
        BETWEEN_CROSS: search_test(rows, workspace.vectors(job.training.old), split),
        BETWEEN_SELF: search_test(rows, rows, split),
    }
    return WeightTests(alpha, tests)


@dataclass(frozen=True)
class AtThreshold:
    """A cell's tests at the threshold that gives the old system a false accept rate."""

    old_self: SearchTest  # old queries in the old gallery
    cross: SearchTest  # new queries in the old gallery
    far: float
    score_scale: float | None  # the new model's; None if it has none

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


@dataclass(frozen=True)
class MixedGallery:
    """A gallery that the new model backfills, and what it is compared with.

    A row is the template of a class, as in all tests of a benchmark. So the curve begins at the
    cross test and ends at the new self test.
    """

    old_self: SearchTest  # old queries in the old gallery
    scores: MixedScores  # of new queries with rows of both models
    draws: ClassDraws  # how often each class of the queries counts in each repeat
    far: float  # of the TAR

    def measured(self, order: Ints, calibration: ScoreMap) -> dict[str, Any]:
        """Return what a way of merging scores gives, as plain values for a file.

        ``order`` has the (rows,) rows, the first to be embedded again first; ``calibration`` puts
        the scores of old rows on the scale of new rows.
        """
        top_1, shares = self.scores.right(order, calibration).mean(axis=0), shares_of(order)
        half = self.scores.half_test(order, calibration)
        metrics = measured_metrics(half, [self.far])
        of_curve = curve_values(top_1[None], top_1, shares)
        return {
            "shares": shares.tolist(),
            TOP_1: top_1.tolist(),
            "calibration": calibration.as_json(),
            "values": {name: float(values[0]) for name, values in of_curve.items()}
            | {
                HALF_TOP_1: metrics[TOP_1],
                half_tar(self.far): metrics[tar_name(self.far)],
                HALF_NFR: flip_rates(self.old_self, half)["nfr"],
            },
        }

    def sampled(self, order: Ints, calibration: ScoreMap) -> dict[str, Floats]:
        """Return (repeats,) of each of the values, for drawn classes."""
        right = self.scores.right(order, calibration)
        half = self.scores.half_test(order, calibration)
        metrics = sampled_metrics(half, self.draws, self.far)
        drawn = [
            sampled_mean(point, self.scores.query_classes, self.draws)
            for point in right.T.astype(np.float64)
        ]
        return curve_values(np.stack(drawn, axis=1), right.mean(axis=0), shares_of(order)) | {
            HALF_TOP_1: metrics[TOP_1],
            half_tar(self.far): metrics[tar_name(self.far)],
            HALF_NFR: sampled_flip_rates(self.old_self, half, self.draws)["nfr"],
        }


def curve_values(top_1: Floats, measured: Floats, shares: Floats) -> dict[str, Floats]:
    """Return (n,) the mean of each curve, and its deepest dips below its start and below a line.

    ``top_1`` (n, points) is the measured curve itself, or drawn ones; ``measured`` (points,) is the
    measured curve, and ``shares`` (points,) those of the rows that the new model has made. The line
    goes straight from the start to the end. A dip is that at the share where the measured curve is
    deepest; drawn curves do not choose another share.
    """
    below_start, deepest = top_1 - top_1[:, :1], int(np.argmin(measured))
    below_line = top_1 - _line(top_1, shares)
    deepest_of_line = int(np.argmin(measured[None] - _line(measured[None], shares)))
    return {
        MEAN: top_1.mean(axis=1),
        BELOW_START: below_start[:, deepest],
        BELOW_LINE: below_line[:, deepest_of_line],
    }


def _line(top_1: Floats, shares: Floats) -> Floats:
    """Return (n, points): the straight line between the ends of each curve."""
    return top_1[:, :1] + (top_1[:, -1:] - top_1[:, :1]) * shares
