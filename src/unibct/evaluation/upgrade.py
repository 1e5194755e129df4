"""Whether a new model may replace an old one: self tests, cross test and verdict.

A quarter of each class's images (at least one), chosen by a seed, is pooled into the class's
template in the gallery. The rest are queries. Every query is compared with every template; the
1:1 test and the 1:N test both use these scores. In a self test both sides come from one model. In
the cross test the queries come from the new model and the templates from the old one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from unibct.arrays import Floats, Ints, checked_embeddings, to_numpy
from unibct.data.image_set import ImageSet
from unibct.embeddings.recall import Strength
from unibct.evaluation.blending import (
    MIDPOINT,
    AlphaChoice,
    BlendedQueries,
    blended_test,
    require_alpha,
)
from unibct.evaluation.bootstrap import REPEATS, class_draws
from unibct.evaluation.criterion import (
    OLD_MODEL_TOO_WEAK,
    Criterion,
    OldModelVerdict,
    Verdict,
    few_classes_note,
    joint_verdict,
    sampled_test,
)
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.mixed_gallery import BackfillCurve, backfill_curve, row_orders
from unibct.evaluation.old_threshold import AtOldThreshold, Flips, at_old_thresholds, flips_of
from unibct.evaluation.pixel_baseline import NOT_CHECKED, old_model_strength
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.search_test import (
    BLEND,
    CROSS,
    FREE_CROSS,
    FREE_SELF,
    NEW_SELF,
    OLD_SELF,
    REVERSED_CROSS,
    Direction,
    SearchTest,
    search_test,
)
from unibct.evaluation.seen_classes import (
    FEWEST_TESTED,
    ModelsUnderTest,
    SeenChoice,
    SeenClasses,
    choices_of,
    compared_choices,
    models_under_test,
)
from unibct.evaluation.single_images import SingleImages, single_images
from unibct.evaluation.subjects import Subjects, known_fingerprints
from unibct.evaluation.templates import GalleryMode, GallerySplit, split_for
from unibct.evaluation.verification import (
    ThresholdRule,
    carried_fars,
    far_note,
    headline_far,
    rate_name,
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What every evaluation protocol reports.

    Attributes:
        values: test -> metric -> value, as tables show them.
        compared: M(cross) − M(old self) of each metric that has an interval.
        seen: how many test classes a model was trained on; the verdict is over the others.
        choices: what was chosen, and on how many of these classes; None if that was not compared.
        seen_values: test -> metric -> value over the classes that a model was trained on.
        note: what a reader must know about the numbers.
        old_model: recall@1 of the old model and of raw pixels; None if it is not known.
        fingerprints: of the models that made ``query`` and ``gallery``, where they are known.
    """

    values: dict[str, dict[str, float]]
    compared: tuple[Criterion, ...]
    seen: SeenClasses
    choices: tuple[SeenChoice, ...] | None = None
    seen_values: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    note: str | None = None
    old_model: Strength | None = None
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

    def metrics(self, test: str) -> dict[str, float]:
        """Return the metrics of one test, in the order of the tables."""
        return self.values[test]

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


PROJECTED = "projected"  # the new model's embeddings in the old space

_NEAREST_NOTE = (
    "the TARs of the tests are at the ROC corner nearest to the rate, as the field's scripts "
    "report them; everything else, the verdict too, uses the strict threshold"
)


def _notes(
    models: dict[str, Floats], used_far: float, far: float | None, split: GallerySplit
) -> Iterator[str | None]:
    """Say what limits the FAR and the verdict, and which vectors tests of two dimensions use."""
    classes, counted = split.compared_classes, "classes"
    if classes < split.classes:
        counted += f"' worth of pairs ({split.query_classes} of {split.classes} have queries)"
    yield far_note(used_far, far, classes, counted)
    yield few_classes_note(split.query_classes)
    if PROJECTED in models:
        yield (
            f"the new model has dimension {models['new'].shape[1]} and the old one "
            f"{models['old'].shape[1]}: tests between the two use the new model's projection into "
            "the old space, new→new uses its full vectors; partly backfilled galleries are "
            "searched in the old space"
        )


def _left_out_note(seen_part: "_Part | None") -> str | None:
    """Say that seen classes without queries, which no count has, are not in the gallery."""
    split = None if seen_part is None else seen_part.split
    if split is None or split.classes == split.query_classes:
        return None
    return (
        "classes without queries that a model was trained on are left out of the gallery "
        f"({split.classes - split.query_classes})"
    )


def joined_notes(*notes: str | None, rule: ThresholdRule) -> str | None:
    """Join what a reader must know, and add what the threshold rule means if it is not strict."""
    texts = [note for note in (*notes, _NEAREST_NOTE if rule == "nearest" else None) if note]
    return "; ".join(texts) or None


@dataclass(frozen=True, kw_only=True)
class SearchEvaluation(Evaluation):
    """An evaluation by searches: what a team decides on besides the verdict.

    Attributes:
        tests: the tests by the name of their direction, such as ``new→old``.
        far: false accept rate of the headline TAR.
        carried_fars: the false accept rates that the test classes can measure.
        old_clients: M(old→new) − M(old→old) of each metric: old queries in a gallery of the new
            model, as in a staged roll-out.
        at_old_threshold: the cross test at the thresholds that the old system uses today.
        score_scale: the new model's, with which ``scaled`` of these was measured; None if unknown.
        flips: queries whose answer changes with the upgrade.
        blended_queries: what blends of old and new queries gain in the old gallery.
        seed: of what is drawn.
        repeats: bootstrap samples.
    """

    tests: dict[str, SearchTest]
    far: float
    carried_fars: tuple[float, ...]
    old_clients: tuple[Criterion, ...]
    at_old_threshold: tuple[AtOldThreshold, ...]
    score_scale: float | None
    flips: Flips
    blended_queries: BlendedQueries
    seed: int
    repeats: int

    @property
    def old_clients_verdict(self) -> Verdict:
        """Whether old queries search a gallery of the new model as well as the old one."""
        return joint_verdict([c.verdict for c in self.old_clients if c.decides])

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


def compared_answers(
    tests: dict[str, SearchTest],
    far: float,
    seed: int,
    repeats: int,
    *,
    alpha: float | AlphaChoice,
    score_map: ScoreMap | None = None,
    score_scale: float | None = None,
) -> dict[str, Any]:
    """Return the fields of a ``SearchEvaluation`` that compare the tests with each other.

    Args:
        tests: by direction, all of the same queries.
        far: false accept rate of the TAR.
        seed: of the bootstrap samples, and of the score map's parts of the classes.
        repeats: bootstrap samples.
        alpha: the share of the new query in blended queries, or how it was chosen.
        score_map: puts cross-test scores on the old scale; by default fitted on other classes.
        score_scale: the new model's, which does the same by one number.
    """
    old_self, cross = tests[OLD_SELF], tests[CROSS]
    draws = class_draws(cross, seed=seed, repeats=repeats)
    sampled = {
        name: sampled_test(tests[name], draws, far)
        for name in (OLD_SELF, CROSS, REVERSED_CROSS, BLEND)
    }
    return {
        "seed": seed,
        "repeats": repeats,
        "compared": sampled[CROSS].minus(sampled[OLD_SELF]),
        "old_clients": sampled[REVERSED_CROSS].minus(sampled[OLD_SELF]),
        "blended_queries": BlendedQueries(
            share_of(alpha),
            sampled[BLEND].minus(sampled[OLD_SELF]),
            sampled[BLEND].minus(sampled[CROSS]),
            alpha if isinstance(alpha, AlphaChoice) else None,
        ),
        "at_old_threshold": at_old_thresholds(
            old_self, cross, draws, score_map=score_map, score_scale=score_scale, seed=seed
        ),
        "score_scale": score_scale,
        "flips": flips_of(old_self, cross, draws),
    }


@dataclass(frozen=True, kw_only=True)
class UpgradeEvaluation(SearchEvaluation):
    """What ``evaluate_upgrade`` finds; the tests are kept for curves and pictures.

    Attributes:
        split: which of the tested images are in the gallery.
        tested_images: the places of the tested images among those that were given.
        backfill_curves: by the order of the rows; empty if they were not asked for.
        subjects: which models and data were tested; None if only arrays were given.
    """

    split: GallerySplit
    tested_images: Ints
    backfill_curves: dict[str, BackfillCurve]
    rule: ThresholdRule = "strict"
    subjects: Subjects | None = None

    @cached_property
    def single_images(self) -> SingleImages:
        """The same tests in a gallery whose rows are single images."""
        return single_images(
            self.tests,
            self.split,
            far=self.far,
            alpha=self.blended_queries.alpha,
            seed=self.seed,
            repeats=self.repeats,
        )

    @property
    def single_images_verdict(self) -> Verdict | OldModelVerdict:
        """The verdict that decides for a gallery whose rows are single images."""
        return self._judged(self.single_images.verdict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        fars = self.carried_fars
        return super().as_json() | {
            "tests": {
                name: self.values[name]
                | {"tar_at_far": _by_rate(test.pairs.tars(fars, rule=self.rule))}
                for name, test in self.tests.items()
            },
            "backfill_curve": {n: curve.as_json() for n, curve in self.backfill_curves.items()},
            "single_images": self.single_images.as_json() | {"verdict": self.single_images_verdict},
            "queries": len(self.split.query),
            "templates": self.split.classes,
            "images_in_templates": len(self.split.gallery),
        }


def _by_rate(tars: dict[float, float]) -> dict[str, float]:
    return {f"{far:g}": tar for far, tar in tars.items()}


def evaluate_upgrade(
    old: Any,
    new: Any,
    labels: Any = None,
    *,
    free: Any = None,
    projected: Any = None,
    seen_classes: bool = False,
    images: Any = None,
    far: float | None = None,
    rule: ThresholdRule = "strict",
    seed: int = 0,
    repeats: int = REPEATS,
    split: GallerySplit | None = None,
    mode: GalleryMode = "templates",
    score_map: ScoreMap | None = None,
    score_scale: float | None = None,
    alpha: float | AlphaChoice = MIDPOINT,
    backfill_curves: bool = False,
) -> UpgradeEvaluation:
    """Test old and new queries in old and new galleries of the same images, with a verdict.

    Args:
        old: (images, dim) the old model's: an array, or ``Embeddings`` with its training classes.
        new: the new model's, likewise.
        labels: (images,) integers 0…C-1; by default those of ``old`` or ``new``.
        free: (images, dim′) of a new model trained without compatibility: the upper bound.
        projected: (images, dim) the new model's in the old space, if it has another dimension.
        seen_classes: go on even if training or a choice was mostly on the test classes.
        images: an ``ImageSet`` or uint8 pixels: then the old model is compared with raw pixels.
        far: false accept rate of the headline TAR; by default the smallest that is measurable.
        rule: of the reported TARs' thresholds, see ``tar_at_far``; the criterion's is strict.
        seed: chooses the gallery's images and the bootstrap samples.
        repeats: bootstrap samples.
        split: which images are in the gallery; by default a quarter of each class's.
        mode: the gallery's entries are ``templates``, one for each class, or ``images``.
        score_map: puts cross-test scores on the old scale; by default fitted on other classes.
        score_scale: the new model's (``Model.score_scale``), which does the same by one number.
        alpha: the share of the new query in blended queries, or what ``choose_alpha`` returned.
        backfill_curves: also measure the gallery while it is being embedded again.
    """
    tested = models_under_test(_given(old, new, free), labels)
    seen, part, seen_part = _parts(tested, projected, split, seed, seen_classes)
    chosen: dict[str, Any] = {"alpha": alpha, "score_map": score_map, "score_scale": score_scale}
    known, said = _known(tested, seen, part, **chosen, allowed=seen_classes)
    models, used_far = part.models, headline_far(part.split.compared_classes, far)
    tests = _direction_tests(models, part.split, mode, share_of(alpha))
    curves = _curves(models, part.split, mode, used_far, tests[OLD_SELF], seed)
    limits = (*_notes(models, used_far, far, part.split), _left_out_note(seen_part))
    return UpgradeEvaluation(
        **_test_values(tests, part, used_far, rule) | known,
        seen_values=_seen_values(seen_part, mode, used_far, rule),
        note=joined_notes(*limits, *said, rule=rule),
        old_model=_strength(part, images, len(tested.labels), seed),
        backfill_curves=dict(curves) if backfill_curves else {},
        **compared_answers(tests, used_far, seed, repeats, **chosen),
    )


class _Part(NamedTuple):
    """Some of the images that were given.

    Attributes:
        places: theirs, ascending.
        models: (images, dim) vectors of each model.
        split: which of them are in the gallery.
    """

    places: Ints
    models: dict[str, Floats]
    split: GallerySplit

    def of_images(self, places: Ints) -> "_Part":
        """Return all those of some classes."""
        models = {name: vectors[places] for name, vectors in self.models.items()}
        return _Part(places, models, self.split.of_images(places))


def _known(
    tested: ModelsUnderTest,
    seen: SeenClasses,
    part: _Part,
    *,
    alpha: float | AlphaChoice,
    score_map: ScoreMap | None,
    score_scale: float | None,
    allowed: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of an evaluation that say what is known of the models, and notes."""
    relied_on = choices_of(
        {role: model.training_classes for role, model in tested.known.items()},
        alpha=alpha.chosen_on if isinstance(alpha, AlphaChoice) else None,
        score_map=score_map,
        uses_scale=score_scale is not None,
    )
    choices = ()
    if relied_on:  # a digest of a million images takes ten seconds
        test = tested.choice("", among=part.places[part.split.query])
        choices = compared_choices(relied_on, test, allowed=allowed)
    if any(choice.is_of_the_test for choice in choices):
        seen = replace(seen, overridden=True)
    sides = {"query": tested.known.get("new"), "gallery": tested.known.get("old")}
    fields = {"seen": seen, "choices": choices, "fingerprints": known_fingerprints(**sides)}
    map_note = [] if score_map is None else [score_map.note]
    return fields, [seen.note, *(choice.note for choice in choices), *map_note]


def _parts(
    tested: ModelsUnderTest,
    projected: Any,
    split: GallerySplit | None,
    seed: int,
    seen_classes: bool,
) -> tuple[SeenClasses, _Part, _Part | None]:
    """Return how many classes are seen, what the verdict is over, and the seen classes apart.

    Seen classes are left out as queries and as rows: a test on the unseen ones alone has the same
    answers.
    """
    split = split_for(tested.labels, split, seed=seed)
    seen = tested.seen_among(split.query_labels).require_minority(allowed=seen_classes)
    whole = _Part(np.arange(len(split.labels)), tested.vectors | _in_old_space(projected), split)
    if tested.is_seen is None or not tested.is_seen.any() or not seen.leaves_enough:
        return seen, whole, None
    is_seen = np.isin(tested.labels, tested.labels[tested.is_seen])
    unseen, others = (np.flatnonzero(chosen) for chosen in (~is_seen, is_seen))
    return seen, whole.of_images(unseen), whole.of_images(others)


def _seen_values(
    part: _Part | None, mode: GalleryMode, far: float, rule: ThresholdRule
) -> dict[str, dict[str, float]]:
    """Return test -> metric -> value of the seen classes, if these can be searched."""
    values: dict[str, dict[str, float]] = {}
    if part is None or part.split.query_classes < FEWEST_TESTED:
        return values
    for name in (OLD_SELF, CROSS, NEW_SELF):
        query, gallery = (part.models[side] for side in _spaces(name, part.models))
        test = search_test(query, gallery, part.split, mode=mode)
        values[name] = measured_metrics(test, [far], rule=rule)
    return values


def _strength(part: _Part, images: Any, given: int, seed: int) -> Strength | None:
    """Compare the old model with raw pixels on the tested ones of all images that were given."""
    if images is not None and len(part.places) < given == len(images):
        is_set = isinstance(images, ImageSet)
        images = images.select(part.places) if is_set else to_numpy(images)[part.places]
    return old_model_strength(part.models["old"], part.split.labels, images, seed=seed)


def share_of(alpha: float | AlphaChoice) -> float:
    """Return the share of the new query that was given or chosen."""
    share = alpha.alpha if isinstance(alpha, AlphaChoice) else alpha
    require_alpha(share)
    return share


def _direction_tests(
    models: dict[str, Floats], split: GallerySplit, mode: GalleryMode, alpha: float
) -> dict[str, SearchTest]:
    """Make the tests of all directions that the models allow."""
    directions = [OLD_SELF, CROSS, REVERSED_CROSS, NEW_SELF]
    if "free" in models:
        same_dim = models["free"].shape[1] == models["old"].shape[1]
        directions += [FREE_SELF, FREE_CROSS] if same_dim else [FREE_SELF]
    tests: dict[str, SearchTest] = {}
    for name in directions:
        query, gallery = (models[side] for side in _spaces(name, models))
        tests[name] = search_test(query, gallery, split, mode=mode)
    return tests | {BLEND: blended_test(tests[OLD_SELF], tests[CROSS], alpha)}


def _test_values(
    tests: dict[str, SearchTest], part: "_Part", far: float, rule: ThresholdRule
) -> dict[str, Any]:
    """Return the fields of an evaluation that hold the tests and their metrics."""
    return {
        "tests": tests,
        "values": {name: measured_metrics(test, [far], rule=rule) for name, test in tests.items()},
        "split": part.split,
        "tested_images": part.places,
        "far": far,
        "carried_fars": tuple(carried_fars(part.split.compared_classes)),
        "rule": rule,
    }


def _given(old: Any, new: Any, free: Any) -> dict[str, Any]:
    return {"old": old, "new": new} | ({} if free is None else {"free": free})


def _in_old_space(projected: Any) -> dict[str, Floats]:
    return {} if projected is None else {PROJECTED: checked_embeddings(projected, PROJECTED)}


def _spaces(direction: Direction, models: dict[str, Floats]) -> tuple[str, str]:
    """Return the embeddings that the two sides of a test use, by their names in ``models``."""
    query, gallery = direction.query, direction.gallery
    if PROJECTED in models and direction == CROSS:
        query = PROJECTED
    if PROJECTED in models and direction == REVERSED_CROSS:
        gallery = PROJECTED
    return query, gallery


def _curves(
    models: dict[str, Floats],
    split: GallerySplit,
    mode: GalleryMode,
    far: float,
    old_self: SearchTest,
    seed: int,
) -> Iterator[tuple[str, BackfillCurve]]:
    """Yield the backfill curve of each order of rows."""
    old, new = models["old"], models.get(PROJECTED, models["new"])
    before = measured_metrics(old_self, [far])
    for name, order in row_orders(old, split, seed=seed).items():
        curve = backfill_curve(old, new, split, order, far=far, old_self=before, mode=mode)
        yield name, curve
