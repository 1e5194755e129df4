"""Whether a new model may replace an old one: self tests, cross test and verdict on embeddings.

A quarter of each class's images (at least one), chosen by a seed, is pooled into the class's
template in the gallery. The rest are queries. Every query is compared with every template; the
1:1 test and the 1:N test both use these scores. In a self test both sides come from one model. In
the cross test the queries come from the new model and the templates from the old one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from unibct import progress
from unibct.arrays import Floats, Ints, checked_embeddings, to_numpy
from unibct.data.decoding import Frame
from unibct.data.image_set import ImageSet
from unibct.embeddings.recall import ModelRecall
from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT, AlphaChoice, blended_test
from unibct.evaluation.bootstrap import REPEATS
from unibct.evaluation.criterion import few_classes_note
from unibct.evaluation.evaluation import (
    Evaluated,
    SampledTests,
    UpgradeEvaluation,
    Values,
    joined_notes,
    known_fingerprints,
    share_of,
)
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.mixed_gallery import BackfillCurve, backfill_curve, row_orders
from unibct.evaluation.options import EvaluationOptions, chosen_options
from unibct.evaluation.pixel_baseline import old_model_recall
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
from unibct.evaluation.templates import GalleryMode, GallerySplit, split_for
from unibct.evaluation.verification import ThresholdRule, carried_fars, far_note, headline_far

PROJECTED = "projected"  # the new model's embeddings in the old space


def evaluate_embeddings(
    labels: Any = None,
    *,
    old: Any,
    new: Any,
    free: Any = None,
    projected: Any = None,
    images: Any = None,
    frame: Frame | None = None,
    split: GallerySplit | None = None,
    score_map: ScoreMap | None = None,
    score_scale: float | None = None,
    alpha: float | AlphaChoice | None = None,
    repeats: int = REPEATS,
    evaluated: Evaluated | None = None,
    options: EvaluationOptions | None = None,
    **changes: Any,
) -> UpgradeEvaluation:
    """Test old and new queries in old and new galleries of the same images, with a verdict.

    Args:
        labels: (images,) integers 0…C-1; by default those of ``old`` or ``new``.
        old: (images, dim) the old model's: an array, or ``Embeddings`` with its training classes.
        new: the new model's, likewise.
        free: (images, dim′) of a new model trained without compatibility: the upper bound.
        projected: (images, dim) the new model's in the old space, if it has another dimension.
        images: an ``ImageSet`` or uint8 pixels: then the old model is compared with raw pixels.
        frame: the form in which the old model takes an image, if it is known.
        split: which images are in the gallery; by default a quarter of each class's.
        score_map: puts cross-test scores on the old scale; by default fitted on other classes.
        score_scale: the new model's (``Model.score_scale``), which does the same by one number.
        alpha: the share of the new query in blended queries, or what ``choose_alpha`` returned.
        repeats: bootstrap samples.
        evaluated: the models and the data, for a certificate.
        options: see ``evaluate``; here curves are measured only if ``backfill_curve`` is true.
        changes: options by their names.
    """
    options = chosen_options(options, changes)
    if alpha is None:
        alpha = MIDPOINT if options.alpha is None else options.alpha
    mode, seed, rule = options.gallery_mode, options.seed, options.threshold_rule
    given = {"old": old, "new": new} | ({} if free is None else {"free": free})
    under_test = models_under_test(given, labels)
    seen, part, seen_part = _parts(under_test, projected, split, options)
    seen, choices = _choices(
        under_test, seen, part, options, alpha=alpha, score_map=score_map, score_scale=score_scale
    )
    models, far = part.models, headline_far(part.split.compared_classes, options.far)
    tests = _direction_tests(models, part.split, mode, share_of(alpha))
    samples = SampledTests.of(tests, far=far, seed=seed, repeats=repeats)
    return UpgradeEvaluation(
        values={name: measured_metrics(test, [far], rule=rule) for name, test in tests.items()},
        compared=samples.difference(CROSS, OLD_SELF),
        seen=seen,
        choices=choices,
        seen_values=_seen_values(seen_part, mode, far, rule),
        note=joined_notes(
            *_limits(part, seen_part, far, options.far),
            seen.note,
            *(choice.note for choice in choices),
            None if score_map is None else score_map.note,
            rule=rule,
        ),
        old_model=_strength(part, images, frame, len(under_test.labels), seed),
        fingerprints=known_fingerprints(old=old, new=new),
        tests=tests,
        samples=samples,
        far=far,
        carried_fars=tuple(carried_fars(part.split.compared_classes)),
        rule=rule,
        alpha=alpha,
        score_map=score_map,
        score_scale=score_scale,
        seed=seed,
        repeats=repeats,
        split=part.split,
        tested_images=part.places,
        backfill_curves=_curves(models, part.split, far, tests[OLD_SELF], options),
        evaluated=evaluated,
    )


# Which of the images the verdict is over, and what was chosen on them.


class _Part(NamedTuple):
    """Some of the images that were given."""

    places: Ints  # theirs, ascending
    models: dict[str, Floats]  # (images, dim) vectors of each model
    split: GallerySplit  # which of them are in the gallery

    def of_images(self, places: Ints) -> "_Part":
        """Return all those of some classes."""
        models = {name: vectors[places] for name, vectors in self.models.items()}
        return _Part(places, models, self.split.of_images(places))


def _parts(
    tested: ModelsUnderTest, projected: Any, split: GallerySplit | None, options: EvaluationOptions
) -> tuple[SeenClasses, _Part, _Part | None]:
    """Return how many classes are seen, what the verdict is over, and the seen classes apart.

    Seen classes are left out as queries and as rows: a test on the unseen ones alone has the same
    answers.
    """
    split = split_for(tested.labels, split, seed=options.seed)
    seen = tested.seen_among(split.query_labels).require_minority(allowed=options.seen_classes)
    models = dict(tested.vectors)
    if projected is not None:
        models[PROJECTED] = checked_embeddings(projected, PROJECTED)
    whole = _Part(np.arange(len(split.labels)), models, split)
    if tested.is_seen is None or not tested.is_seen.any() or not seen.leaves_enough:
        return seen, whole, None
    is_seen = np.isin(tested.labels, tested.labels[tested.is_seen])
    unseen, others = (np.flatnonzero(chosen) for chosen in (~is_seen, is_seen))
    return seen, whole.of_images(unseen), whole.of_images(others)


def _choices(
    tested: ModelsUnderTest,
    seen: SeenClasses,
    part: _Part,
    options: EvaluationOptions,
    *,
    alpha: float | AlphaChoice,
    score_map: ScoreMap | None,
    score_scale: float | None,
) -> tuple[SeenClasses, tuple[SeenChoice, ...]]:
    """Compare what the test relies on with the test classes.

    The seen classes are marked if a choice was made on the test and that is allowed.
    """
    relied_on = choices_of(
        {role: model.training_classes for role, model in tested.known.items()},
        alpha=alpha.chosen_on if isinstance(alpha, AlphaChoice) else None,
        score_map=score_map,
        uses_scale=score_scale is not None,
    )
    choices = ()
    if relied_on:  # a digest of a million images takes ten seconds
        test = tested.choice("", among=part.places[part.split.query])
        choices = compared_choices(relied_on, test, allowed=options.seen_classes)
    if any(choice.is_of_the_test for choice in choices):
        seen = replace(seen, overridden=True)
    return seen, choices


# The tests of all directions, and what stands beside them.


def _direction_tests(
    models: dict[str, Floats], split: GallerySplit, mode: GalleryMode, alpha: float
) -> dict[str, SearchTest]:
    """Make the tests of all directions that the models allow."""
    directions = [OLD_SELF, CROSS, REVERSED_CROSS, NEW_SELF]
    if "free" in models:
        same_dim = models["free"].shape[1] == models["old"].shape[1]
        directions += [FREE_SELF, FREE_CROSS] if same_dim else [FREE_SELF]
    tests: dict[str, SearchTest] = {name: _test(name, models, split, mode) for name in directions}
    return tests | {BLEND: blended_test(tests[OLD_SELF], tests[CROSS], alpha)}


def _test(
    direction: Direction, models: dict[str, Floats], split: GallerySplit, mode: GalleryMode
) -> SearchTest:
    """Search in one direction; between two dimensions the new model's projection is used."""
    query, gallery = direction.query, direction.gallery
    if PROJECTED in models and direction == CROSS:
        query = PROJECTED
    if PROJECTED in models and direction == REVERSED_CROSS:
        gallery = PROJECTED
    return search_test(models[query], models[gallery], split, mode=mode)


def _seen_values(part: _Part | None, mode: GalleryMode, far: float, rule: ThresholdRule) -> Values:
    """Return the values of the seen classes, if these can be searched."""
    if part is None or part.split.query_classes < FEWEST_TESTED:
        return {}
    return {
        name: measured_metrics(_test(name, part.models, part.split, mode), [far], rule=rule)
        for name in (OLD_SELF, CROSS, NEW_SELF)
    }


def _curves(
    models: dict[str, Floats],
    split: GallerySplit,
    far: float,
    old_self: SearchTest,
    options: EvaluationOptions,
) -> dict[str, BackfillCurve]:
    """Return the backfill curve of each order of rows, if they are asked for."""
    if not options.backfill_curve:
        return {}
    old, new = models["old"], models.get(PROJECTED, models["new"])
    before, mode = measured_metrics(old_self, [far]), options.gallery_mode
    return {
        name: backfill_curve(old, new, split, order, far=far, old_self=before, mode=mode)
        for name, order in row_orders(old, split, seed=options.seed).items()
    }


def _strength(
    part: _Part, images: Any, frame: Frame | None, given: int, seed: int
) -> ModelRecall | None:
    """Compare the old model with raw pixels on the tested ones of all images that were given."""
    if images is not None and len(part.places) < given == len(images):
        is_set = isinstance(images, ImageSet)
        images = images.select(part.places) if is_set else to_numpy(images)[part.places]
    try:
        return old_model_recall(
            part.models["old"], part.split.labels, images, frame=frame, seed=seed
        )
    except UserError as error:
        if not isinstance(images, ImageSet) or len(images) != len(part.places):
            raise
        # Stored embeddings may be all that is left of the images.
        progress.note(f"the old model is not compared with raw pixels: {error}")
        return None


def _limits(
    part: _Part, seen_part: _Part | None, used_far: float, far: float | None
) -> Iterator[str | None]:
    """Say what limits the FAR and the verdict, which vectors are used, and what is left out."""
    models, split = part.models, part.split
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
    # No count has the seen classes without queries.
    left_out = 0 if seen_part is None else seen_part.split.classes - seen_part.split.query_classes
    if left_out:
        yield (
            "classes without queries that a model was trained on are left out of the gallery "
            f"({left_out})"
        )
