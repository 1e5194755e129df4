"""What an evaluation finds: values of each test, criteria with intervals, and the verdict."""

import hashlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from unibct.arrays import Ints
from unibct.data.image_set import ImageSet
from unibct.embeddings.recall import ModelRecall
from unibct.embeddings.store import Vectors
from unibct.evaluation.blending import AlphaChoice, BlendedQueries
from unibct.evaluation.bootstrap import ClassDraws, class_draws
from unibct.evaluation.criterion import (
    OLD_MODEL_TOO_WEAK,
    Criterion,
    OldModelVerdict,
    SampledTest,
    Verdict,
    joint_verdict,
    sampled_test,
)
from unibct.evaluation.mixed_gallery import BackfillCurve
from unibct.evaluation.old_threshold import AtOldThreshold, Flips, at_old_thresholds, flips_of
from unibct.evaluation.pixel_baseline import NOT_CHECKED
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.search_test import BLEND, CROSS, OLD_SELF, REVERSED_CROSS, SearchTest
from unibct.evaluation.seen_classes import SeenChoice, SeenClasses
from unibct.evaluation.single_images import SingleImages, single_images
from unibct.evaluation.templates import GallerySplit
from unibct.evaluation.verification import ThresholdRule, rate_name
from unibct.models.embedder import Embedder

Values = dict[str, dict[str, float]]  # test -> metric -> value

_NEAREST_NOTE = (
    "the TARs of the tests are at the ROC corner nearest to the rate, as the field's scripts "
    "report them; everything else, the verdict too, uses the strict threshold"
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What every evaluation protocol reports."""

    values: Values  # as tables show them
    compared: tuple[Criterion, ...]  # M(cross) − M(old self) of each metric that has an interval
    seen: SeenClasses  # how many test classes a model has learnt; the verdict is over the others
    # What was chosen, and on how many of the test classes; None if that was not compared.
    choices: tuple[SeenChoice, ...] | None = None
    seen_values: Values = field(default_factory=dict[str, dict[str, float]])  # over seen classes
    note: str | None = None  # what a reader must know about the numbers
    old_model: ModelRecall | None = None  # recall@1 of it and of raw pixels; None if not known
    # Of the models that made ``query`` and ``gallery``, where they are known.
    fingerprints: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criterion of each metric on which the verdict depends."""
        return tuple(criterion for criterion in self.compared if criterion.decides)

    @property
    def verdict(self) -> Verdict | OldModelVerdict:
        """The joint verdict of the criteria, unless the old model is too weak to judge by."""
        return self._judged(joint_verdict([criterion.verdict for criterion in self.criteria]))

    def _judged(self, verdict: Verdict) -> Verdict | OldModelVerdict:
        too_weak = self.old_model is not None and self.old_model.too_weak
        return OLD_MODEL_TOO_WEAK if too_weak else verdict

    @property
    def full_note(self) -> str | None:
        """The note, and that the strength of the old model was not checked, if it was not."""
        texts = [self.note, NOT_CHECKED if self.old_model is None else None]
        return "; ".join(text for text in texts if text) or None

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "verdict": self.verdict,
            "note": self.full_note,
            "fingerprints": self.fingerprints,
            "seen_classes": self.seen.count,
            "choices": None if self.choices is None else [c.as_json() for c in self.choices],
            "classes": self.seen.as_json(),
            "old_model": None if self.old_model is None else self.old_model.as_json(),
            "criteria": [criterion.as_json() for criterion in self.criteria],
            "further_metrics": [c.as_json() for c in self.compared if not c.decides],
            "tests": self.values,
            "tests_of_seen_classes": self.seen_values,
        }


def joined_notes(*notes: str | None, rule: ThresholdRule) -> str | None:
    """Join what a reader must know, and add what the threshold rule means if it is not strict."""
    texts = [note for note in (*notes, _NEAREST_NOTE if rule == "nearest" else None) if note]
    return "; ".join(texts) or None


def known_fingerprints(*, old: Any, new: Any) -> dict[str, str]:
    """Return the fingerprints of the models behind ``query`` and ``gallery``; arrays have none."""
    known = {
        side: getattr(model, "fingerprint", None)
        for side, model in (("query", new), ("gallery", old))
    }
    return {side: fingerprint for side, fingerprint in known.items() if fingerprint}


@dataclass(frozen=True)
class SampledTests:
    """Tests of the same queries, all sampled with the same draws of their classes."""

    draws: ClassDraws
    tests: dict[str, SampledTest]  # by direction

    @classmethod
    def of(
        cls, tests: dict[str, SearchTest], *, far: float, seed: int, repeats: int
    ) -> "SampledTests":
        """Sample the tests that an evaluation compares; the TAR is at ``far``."""
        draws = class_draws(tests[CROSS], seed=seed, repeats=repeats)
        compared = (OLD_SELF, CROSS, REVERSED_CROSS, BLEND)
        return cls(draws, {name: sampled_test(tests[name], draws, far) for name in compared})

    def difference(self, after: str, before: str) -> tuple[Criterion, ...]:
        """Return how much better one test is than another, in each metric with an interval."""
        return self.tests[after].minus(self.tests[before])


@dataclass(frozen=True, kw_only=True)
class SearchEvaluation(Evaluation):
    """An evaluation by searches: what a team decides on besides the verdict.

    The answers are computed from the tests and the samples when they are asked for.
    """

    tests: dict[str, SearchTest]  # by direction, such as ``new→old``; all of the same queries
    samples: SampledTests
    far: float  # false accept rate of the headline TAR
    carried_fars: tuple[float, ...]  # the false accept rates that the test classes can measure
    rule: ThresholdRule  # of the reported TARs; the criteria are strict
    alpha: float | AlphaChoice  # the share of the new query in blended queries, or its choice
    score_map: ScoreMap | None  # puts cross-test scores on the old scale; None: fitted on others
    score_scale: float | None  # the new model's, which does the same by one number; if known
    seed: int  # of what is drawn
    repeats: int  # bootstrap samples

    @cached_property
    def old_clients(self) -> tuple[Criterion, ...]:
        """M(old→new) − M(old→old): old queries in a new gallery, as in a staged roll-out."""
        return self.samples.difference(REVERSED_CROSS, OLD_SELF)

    @property
    def old_clients_verdict(self) -> Verdict:
        """Whether old queries search a gallery of the new model as well as the old one."""
        return joint_verdict([c.verdict for c in self.old_clients if c.decides])

    @cached_property
    def blended_queries(self) -> BlendedQueries:
        """What blends of old and new queries gain in the old gallery."""
        return BlendedQueries(
            share_of(self.alpha),
            self.samples.difference(BLEND, OLD_SELF),
            self.samples.difference(BLEND, CROSS),
            self.alpha if isinstance(self.alpha, AlphaChoice) else None,
        )

    @cached_property
    def at_old_threshold(self) -> tuple[AtOldThreshold, ...]:
        """The cross test at the thresholds that the old system uses today."""
        return at_old_thresholds(
            self.tests[OLD_SELF],
            self.tests[CROSS],
            self.samples.draws,
            score_map=self.score_map,
            score_scale=self.score_scale,
            seed=self.seed,
        )

    @cached_property
    def flips(self) -> Flips:
        """Queries whose answer changes with the upgrade."""
        return flips_of(self.tests[OLD_SELF], self.tests[CROSS], self.samples.draws)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        clients = [criterion.as_json() for criterion in self.old_clients if criterion.decides]
        return super().as_json() | {
            "far": self.far,
            "old_clients": {"verdict": self.old_clients_verdict, "criteria": clients},
            "at_old_threshold": {
                rate_name(row.far): row.as_json() | {"carried": row.far in self.carried_fars}
                for row in self.at_old_threshold
            },
            "score_scale": self.score_scale,
            "flips": self.flips.as_json(),
            "blended_queries": self.blended_queries.as_json(),
        }


def share_of(alpha: float | AlphaChoice) -> float:
    """Return the share of the new query that was given or chosen."""
    return alpha.alpha if isinstance(alpha, AlphaChoice) else alpha


# Which models and data were tested, so that a certificate can name them.

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that was tested."""

    fingerprint: str  # tells it from all models with other vectors
    dim: int
    name: str  # what the user called it
    vectors: str  # a digest of its embeddings of the test images

    @classmethod
    def of(cls, embedder: Embedder, vectors: Vectors) -> "EvaluatedModel":
        """Return what to say about a model and its (images, dim) embeddings of the test images."""
        digest = hashlib.sha256()
        for start in range(0, len(vectors), _ROWS_AT_ONCE):
            block = vectors[start : start + _ROWS_AT_ONCE]
            digest.update(np.ascontiguousarray(block, dtype="<f4").tobytes())
        return cls(embedder.fingerprint, embedder.dim, embedder.name, digest.hexdigest())


@dataclass(frozen=True)
class EvaluatedData:
    """The images of a test."""

    name: str  # what the user called them
    digest: str  # of the ids and classes, in their order
    images: int
    classes: int

    @classmethod
    def of(cls, images: ImageSet) -> "EvaluatedData":
        """Return what to say about a test set."""
        return cls(images.name, images.digest, len(images), len(images.class_names))


@dataclass(frozen=True)
class Evaluated:
    """Two models by their fingerprints, and the data by its digest."""

    old: EvaluatedModel
    new: EvaluatedModel
    data: EvaluatedData

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class UpgradeEvaluation(SearchEvaluation):
    """An evaluation on images with classes; the tests are kept for curves and pictures."""

    split: GallerySplit  # which of the tested images are in the gallery
    tested_images: Ints  # the places of the tested images among those that were given
    backfill_curves: dict[str, BackfillCurve]  # by the order of the rows; empty if not asked for
    evaluated: Evaluated | None = None  # None if only arrays were given

    @cached_property
    def single_images(self) -> SingleImages:
        """The same tests in a gallery whose rows are single images."""
        return single_images(
            self.tests,
            self.split,
            far=self.far,
            alpha=share_of(self.alpha),
            seed=self.seed,
            repeats=self.repeats,
        )

    @property
    def single_images_verdict(self) -> Verdict | OldModelVerdict:
        """The verdict that decides for a gallery whose rows are single images."""
        return self._judged(self.single_images.verdict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        tests: dict[str, Any] = {}
        for name, test in self.tests.items():
            tars = test.pairs.tars(self.carried_fars, rule=self.rule)
            by_rate = {f"{far:g}": tar for far, tar in tars.items()}
            tests[name] = self.values[name] | {"tar_at_far": by_rate}
        return super().as_json() | {
            "tests": tests,
            "backfill_curve": {n: curve.as_json() for n, curve in self.backfill_curves.items()},
            "single_images": self.single_images.as_json() | {"verdict": self.single_images_verdict},
            "queries": len(self.split.query),
            "templates": self.split.classes,
            "images_in_templates": len(self.split.gallery),
        }
