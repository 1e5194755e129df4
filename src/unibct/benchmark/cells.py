"""Whether a job's model was made from the models that it is tested with.

The same command does not give the same weights on every machine. So an old model that was trained
again, or that comes from another benchmark, may not be the one that a stored model was made for.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from unibct.arrays import Floats, Ints
from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import (
    MODEL,
    RESULT_FILE,
    VALIDATION,
    Workspace,
    is_finished,
    validation_pixels,
)
from unibct.data.image_set import ImageSet
from unibct.data.loader import unread_pixels
from unibct.data.training_classes import TrainingClasses
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.score_scale import NoScoreScaleError, score_scale
from unibct.embeddings.store import (
    STORE_DESCRIPTION,
    open_embeddings,
    read_description,
    save_embeddings,
)
from unibct.errors import UserError
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
from unibct.files import read_json
from unibct.models.blended_weights import blend_weights, started_from
from unibct.models.model_folder import MODEL_DESCRIPTION, load_model
from unibct.training.validation import with_score_scale


def model_elsewhere(workspace: Workspace, job: Job) -> Path | None:
    """Return where another benchmark has finished this job with its model, if it has.

    A model that was made from other models than those of this benchmark is not taken. Where this
    benchmark has none yet, those of the other one count.
    """
    elsewhere = workspace.models_from
    if elsewhere is None or not is_finished(elsewhere, job):
        return None
    folder = elsewhere / job.folder
    if not (folder / MODEL / MODEL_DESCRIPTION).is_file():
        return None
    other = _other_model(job, folder / MODEL, (workspace.out, elsewhere), maps=True)
    return folder if other is None else None


def require_model_origins(out: Path, job: Job, *, maps: bool = True) -> None:
    """Raise an error if a job's model was made from other models than it is tested with.

    Args:
        out: the benchmark's folder.
        job: a finished job, or one with its model.
        maps: check too whether a map was fitted to today's free model, which loads its weights.
    """
    other = _other_model(job, out / job.folder / MODEL, (out,), maps=maps)
    if other is not None:
        raise UserError(
            f"{out / job.folder} was made for another model than the one that {other} has now; "
            f"remove {out / job.folder} and run the benchmark again"
        )


def _other_model(job: Job, model: Path, roots: tuple[Path, ...], *, maps: bool) -> str | None:
    """Return the job whose model is not the one from which a stored model was made, if any.

    Args:
        job: whose model it is.
        model: the model's folder; nothing is known of a model that is no longer there.
        roots: the benchmark's folder, then where else the models may be that the job needs.
        maps: check the free model of a map too.
    """
    making = job.training or job.map_fitting
    if making is None or making.old is None or not (model / MODEL_DESCRIPTION).is_file():
        return None
    made_for = read_json(model / MODEL_DESCRIPTION).get("old_model")
    if made_for is not None and made_for != _fingerprint(roots, making.old, made_for):
        return making.old
    if maps and job.map_fitting is not None:
        mapped = _mapped_fingerprint(model)
        if mapped != _fingerprint(roots, job.map_fitting.new, mapped):
            return job.map_fitting.new
    return None


def _fingerprint(roots: tuple[Path, ...], folder: str, unknown: str | None) -> str | None:
    """Return the fingerprint of a job's model, or ``unknown`` if no result tells it."""
    for root in roots:
        if (root / folder / RESULT_FILE).is_file():
            return read_json(root / folder / RESULT_FILE).get("fingerprint", unknown)
    return unknown


def _mapped_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint that a model with a map has without it; None without a map."""
    model = load_model(folder, with_classifier=False)
    if model.vector_map is None:
        return None
    return replace(model, vector_map=None, dim=model.vector_map.new_dim).fingerprint


# What a cell chooses on validation classes: how it blends queries, and how it merges scores.
#
# A model embeds the validation images once; the folder of its job keeps the embeddings in
# ``validation/``.


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
    mergings: dict[str, ScoreMap]
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
    mergings = fitted_kinds(MERGINGS, *(test.pairs for test in searches))
    scores = MixedScores.of_tests(*searches)
    order = scores.random_order(job.seed)
    means = {
        kind: float(np.mean(scores.right(order, calibration).mean(axis=0)))
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
    if (path / STORE_DESCRIPTION).is_file():
        stored, source = open_embeddings(path), read_description(path).source
        same_pixels = source in (pixels, None)  # see ``record_validation`` for None
        same_model = stored.fingerprint == workspace.embeddings(folder).fingerprint
        if same_pixels and same_model and set(images.ids) <= set(stored.ids):
            return stored.rows_of(images)
    shutil.rmtree(path, ignore_errors=True)
    embeddings = embed_images(workspace.model(folder), images)
    save_embeddings(embeddings, path, source=pixels)
    return embeddings.rows_of(images)


# What a cell's mixed galleries are worth: new queries while the gallery is backfilled.
#
# A row is the template of a class, as in all tests of a benchmark. So the curve begins at the cross
# test and ends at the new self test.

MIXED = "mixed_galleries"  # the entry of a cell's result
MERGINGS = (RAW, STANDARDISED)  # the kinds of calibration that are compared
# What is measured, by its name in results.
MEAN, BELOW_START, BELOW_LINE = "top-1 mean", "top-1 dip below start", "top-1 dip below line"
HALF_TOP_1, HALF_NFR = "top-1 at half", "nfr at half"


def mixed_name(merging: str) -> str:
    """Return what a mixed gallery is called in the place of a test, such as ``mixed raw``."""
    return f"mixed {merging}"


def half_tar(far: float) -> str:
    """Return the name of the TAR in a half-backfilled gallery."""
    return f"{tar_name(far)} at half"


@dataclass(frozen=True)
class MixedGallery:
    """A gallery that the new model backfills, and what it is compared with.

    Attributes:
        old_self: old queries in the old gallery.
        scores: of new queries with rows of both models.
        draws: how often each class of the queries counts in each repeat.
        far: false accept rate of the TAR.
    """

    old_self: SearchTest
    scores: MixedScores
    draws: ClassDraws
    far: float

    def measured(self, order: Ints, calibration: ScoreMap) -> dict[str, Any]:
        """Return what a way of merging scores gives, as plain values for a file.

        Args:
            order: (rows,) the rows, the first to be embedded again first.
            calibration: puts the scores of old rows on the scale of new rows.
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

    The line goes straight from the start to the end. A dip is that at the share where the measured
    curve is deepest; drawn curves do not choose another share.

    Args:
        top_1: (n, points) the measured curve, or drawn ones.
        measured: (points,) the measured curve.
        shares: (points,) of rows that the new model has made.
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


# The tests of a benchmark's cell at the old system's threshold, which nobody sets again.
#
# What a threshold accepts is computed in ``evaluation/old_threshold.py``.

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
    if old is None or not (workspace.out / job.folder / MODEL / MODEL_DESCRIPTION).is_file():
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


# The tests of a cell with blended weights, if its model started from the old model's.

# Queries of the model between the old and the new one, in the old gallery and in its own.
BETWEEN_CROSS, BETWEEN_SELF = Direction("between", "old"), Direction("between", "between")

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
    if not all((workspace.out / name / MODEL / MODEL_DESCRIPTION).is_file() for name in folders):
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


# Run the tests of a job on the embeddings of the test images.
#
# A cell measures four things more, which train nothing: new queries at the old system's threshold,
# blends of old and new queries in the old gallery, blended weights, and the gallery while it is
# backfilled.

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
    both = cross, searches[NEW_SELF]
    mergings = (
        fitted_kinds(MERGINGS, *(test.pairs for test in both))
        if choices is None
        else choices.mergings
    )
    gallery = MixedGallery(old_self, MixedScores.of_tests(*both), draws, workspace.far)
    order = gallery.scores.random_order(job.seed)
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
