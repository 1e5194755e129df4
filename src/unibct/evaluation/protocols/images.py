"""Images with classes: a quarter of each class forms the gallery, the rest are queries."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from unibct import progress
from unibct.arrays import Floats
from unibct.data.image_set import ImageSet, require_outside, select_listed
from unibct.data.training_classes import SCORE_MAP_FITTED, Choice, choice_on
from unibct.distributed.ranks import current_ranks
from unibct.embedders import EMBEDDERS, Opening, open_embedder, parse_reference
from unibct.embeddings.extraction import embed_images, embed_images_to_store
from unibct.embeddings.forms import FOLDER_FORM, find_form
from unibct.embeddings.recall import Strength
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import open_data, require_stored
from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT, AlphaChoice, choose_alpha
from unibct.evaluation.pixel_baseline import embedder_frame, old_model_strength
from unibct.evaluation.protocols import EmbeddingRequest, EvaluationRequest, SearchRules
from unibct.evaluation.score_map import (
    ScoreMap,
    fit_score_map,
    kept_score_maps,
    load_score_map,
    save_score_map,
)
from unibct.evaluation.search_test import CROSS, OLD_SELF
from unibct.evaluation.seen_classes import (
    choices_of,
    classes_with_queries,
    compared_choices,
    count_seen_classes,
)
from unibct.evaluation.subjects import Subjects, subject_data, subject_model
from unibct.evaluation.templates import (
    GALLERY_SHARE,
    GallerySplit,
    chosen_gallery,
    require_searchable,
)
from unibct.evaluation.upgrade import UpgradeEvaluation, evaluate_upgrade
from unibct.files import partial_folder
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.models.old_space import known_score_scale, old_space_dim, to_old_space

_SCORES_FOR_CURVES = 20_000_000  # of one search: all curves then take a minute at most


def evaluate_images(request: EvaluationRequest) -> UpgradeEvaluation:
    """Evaluate a new model against an old one on an image set.

    The request's ``query`` and ``gallery`` are whatever ``open_embedder`` opens.
    """
    rules = request.search
    opened = open_data(request.data, request.images, skip_bad=request.skip_bad)
    images, lists = _listed_images(opened, rules)
    # Embedding may take hours: whatever can be refused is refused before it begins.
    opening = Opening(request.device)
    embedders = {
        reference: opening.open(reference)
        for reference in dict.fromkeys((request.gallery, request.query))
    }
    project = _projection(embedders[request.query], embedders[request.gallery], request)
    _note_roles(embedders[request.query], embedders[request.gallery], request)
    _require_unseen(images, embedders, request, lists)
    if lists is None:
        require_searchable(images.labels, images.name)
    validation = _validation_images(images, embedders, request)
    score_map = _kept_score_map(embedders[request.gallery].fingerprint, request)
    score_scale = known_score_scale(
        embedders[request.query], embedders[request.gallery].fingerprint
    )
    _require_not_chosen_on(images, embedders, score_map, score_scale, request)
    sides, images = _embedded(images, embedders, request)
    old, new = sides[request.gallery], sides[request.query]
    split = None if lists is None else _listed_split(images, lists, rules)
    new_side = new.of_images(images)
    evaluation = evaluate_upgrade(
        old.of_images(images),
        new_side,
        images.labels,
        projected=None if project is None else project(new_side.vectors),
        seen_classes=request.seen_classes,
        far=request.far,
        rule=request.threshold_rule,
        seed=request.seed,
        split=split,
        mode=rules.mode,
        score_map=score_map,
        score_scale=score_scale,
        alpha=_alpha(validation, embedders, project, request),
        backfill_curves=_wants_curves(rules, images, split),
    )
    tested = images.select(evaluation.tested_images)
    evaluation = replace(
        evaluation,
        old_model=_old_model(embedders[request.gallery], old.rows_of(tested), tested, request),
        subjects=Subjects(
            subject_model(embedders[request.gallery], old.rows_of(images)),
            subject_model(embedders[request.query], new_side.vectors),
            subject_data(images),
        ),
    )
    if rules.save_score_map:
        choice = choice_on(SCORE_MAP_FITTED, tested).with_vectors(old.rows_of(tested))
        _save_score_map(evaluation, choice, old.fingerprint, request)
    return evaluation


def _embedded(
    images: ImageSet, embedders: Mapping[str | Path, Embedder], request: EvaluationRequest
) -> tuple[dict[str | Path, Embeddings], ImageSet]:
    """Return each model's embeddings, and the images of which all models have one."""
    if not images.skip_bad:
        require_stored(embedders.values(), images)
    sides = {reference: embed_images(embedder, images) for reference, embedder in embedders.items()}
    if images.skip_bad:
        for side in sides.values():
            images = _embedded_images(images, side)
    return sides, images


def _kept_score_map(old_fingerprint: str, request: EvaluationRequest) -> ScoreMap | None:
    """Return the new model's map if it is asked for; refuse what would stop ``_save_score_map``."""
    rules = request.search
    if rules.old_thresholds and rules.save_score_map:
        raise UserError(
            "--old-thresholds tests the score map that is kept with the new model, and "
            "--save-score-map fits it on the tested classes: use one of them, each on other classes"
        )
    if rules.old_thresholds or rules.save_score_map:
        kept_score_maps(_folder_of(request.query))  # refuses a damaged file
    if not rules.old_thresholds:
        return None
    return load_score_map(_folder_of(request.query), old_fingerprint)


def _save_score_map(
    evaluation: UpgradeEvaluation,
    fitted_on: Choice,
    old_fingerprint: str,
    request: EvaluationRequest,
) -> None:
    """Fit a score map on the whole test, and keep it with the new model."""
    cross, old_self = evaluation.tests[CROSS], evaluation.tests[OLD_SELF]
    try:
        fitted = replace(fit_score_map(cross.impostor, old_self.impostor), fitted_on=fitted_on)
        folder = _folder_of(request.query)
        replaces = old_fingerprint in kept_score_maps(folder)
        path = save_score_map(folder, old_fingerprint, fitted)
    except (UserError, OSError) as error:  # the evaluation is finished: it is not thrown away
        progress.note(f"no score map is kept: {error}")
        return
    progress.note(
        f"{path}: the score map for the old model {old_fingerprint}"
        + (", in place of the one that was fitted before" if replaces else "")
        + f"; {fitted.note}"
    )


def _old_model(
    embedder: Embedder, vectors: Floats, images: ImageSet, request: EvaluationRequest
) -> Strength | None:
    """Compare the old model with raw pixels; stored embeddings may be all that is left."""
    frame = embedder_frame(embedder)
    try:
        return old_model_strength(vectors, images.labels, images, frame=frame, seed=request.seed)
    except UserError as error:
        progress.note(f"the old model is not compared with raw pixels: {error}")
        return None


def _validation_images(
    images: ImageSet, embedders: Mapping[str | Path, Embedder], request: EvaluationRequest
) -> ImageSet | None:
    """Return the images on which the share of the new query is chosen, if any were given."""
    name = request.search.alpha_from
    if name is None:
        return None
    validation = open_data(name, skip_bad=request.skip_bad)
    common = set(images.class_identities) & set(validation.class_identities)
    if common:
        raise UserError(
            f"{name} and {request.data} have {len(common)} classes in common, first "
            f"{min(common)!r}: choose alpha on classes that are not tested"
        )
    _require_unseen(validation, embedders, request, which=f"classes of {name} (--alpha-from)")
    require_searchable(validation.labels, validation.name)
    return validation


def _alpha(
    validation: ImageSet | None,
    embedders: Mapping[str | Path, Embedder],
    project: Callable[[Any], Any] | None,
    request: EvaluationRequest,
) -> float | AlphaChoice:
    """Return the share of the new query in blended queries, given, chosen or by default."""
    if validation is None:
        return MIDPOINT if request.alpha is None else request.alpha
    sides, validation = _embedded(validation, embedders, request)
    old, new = (sides[side].of_images(validation) for side in (request.gallery, request.query))
    return choose_alpha(
        old,
        new if project is None else project(new.vectors),
        validation.labels,
        seed=request.seed,
        mode=request.search.mode,
        chosen_on=request.search.alpha_from,
    )


def _wants_curves(rules: SearchRules, images: ImageSet, split: GallerySplit | None) -> bool:
    if rules.backfill_curve is not None:
        return rules.backfill_curve
    rows = round(len(images) * GALLERY_SHARE) if split is None else len(split.gallery)
    queries = len(images) - rows
    return queries * (rows + len(images.class_names)) <= _SCORES_FOR_CURVES  # mAP ranks all images


def _listed_images(
    images: ImageSet, rules: SearchRules
) -> tuple[ImageSet, tuple[ImageSet, ImageSet] | None]:
    """Return the images that are tested; and the queries and the gallery's images, if listed."""
    if rules.queries is None and rules.gallery_images is None:
        return images, None
    if rules.queries is None or rules.gallery_images is None:
        raise UserError("--queries and --gallery-images go together: give both lists")
    lists = (select_listed(images, rules.queries), select_listed(images, rules.gallery_images))
    both = set(lists[0].ids) & set(lists[1].ids)
    if both:
        raise UserError(f"{min(both)!r} is in {rules.queries} and in {rules.gallery_images}")
    rows = [images.position[image_id] for part in lists for image_id in part.ids]
    chosen = images.select(sorted(rows))
    _listed_split(chosen, lists, rules)
    return chosen, lists


def _listed_split(
    images: ImageSet, lists: tuple[ImageSet, ImageSet], rules: SearchRules
) -> GallerySplit:
    """Return which images are queries and which are in the gallery; some may be left out."""
    places = [
        [images.position[image_id] for image_id in part.ids if image_id in images.position]
        for part in lists
    ]
    enrolled = set(images.labels[places[1]].tolist())
    missing = [name for label, name in enumerate(images.class_names) if label not in enrolled]
    if missing:
        raise UserError(
            f"the class {min(missing)!r} has queries but no image in {rules.gallery_images}"
        )
    return chosen_gallery(images.labels, query=places[0], gallery=places[1])


def embed_image_set(request: EmbeddingRequest) -> Embeddings:
    """Write a model's normalised embeddings of an image set; under torchrun by all processes.

    A form other than the folder is written from a hidden folder beside it, which a killed run
    leaves for the next one.
    """
    form, ranks = find_form(request.form), current_ranks()
    if request.form != FOLDER_FORM:
        form.load().require_writable(request.out)
        if request.dtype != "float32":
            raise UserError(f"--dtype {request.dtype} is for --to {FOLDER_FORM} only")
    model = open_embedder(request.model, device=request.device)
    images = open_data(request.data, request.images, skip_bad=request.skip_bad)
    if request.form == FOLDER_FORM:
        require_outside(images, request.out)
    folder = request.out if request.form == FOLDER_FORM else partial_folder(request.out)
    stored = embed_images_to_store(model, images, folder, dtype=request.dtype, ranks=ranks)
    if request.form == FOLDER_FORM:
        return stored
    if ranks.first:
        form.load().write(stored, request.out)
    ranks.barrier()
    written = form.load().read(request.out)
    if ranks.first:
        shutil.rmtree(folder, ignore_errors=True)
    return written


def _embedded_images(images: ImageSet, side: Embeddings) -> ImageSet:
    """Return the images that have an embedding."""
    known_ids = set(side.ids)
    rows = [row for row, image_id in enumerate(images.ids) if image_id in known_ids]
    return images if len(rows) == len(images) else images.select(rows)


def _projection(
    new: Embedder, old: Embedder, request: EvaluationRequest
) -> Callable[[Any], Any] | None:
    """Return what projects the new embeddings into the old space; None for equal dimensions."""
    if new.dim == old.dim:
        return None
    differ = (
        f"{request.query} has dimension {new.dim} but {request.gallery} has dimension {old.dim}"
    )
    if not isinstance(new, Model) or old_space_dim(new) != old.dim:
        raise UserError(
            f"{differ}: one cannot search the other; give the folder of a model that was trained "
            "with --old OLD, or map one into the other's space with `unibct adapt`"
        )
    if new.old_fingerprint != old.fingerprint:
        raise UserError(
            f"{differ}, and the new model's projection leads into the space of model "
            f"{new.old_fingerprint}, not of {old.fingerprint}"
        )
    return partial(to_old_space, new)


def _folder_of(reference: str | Path) -> Path:
    """Return the folder in which a score map is kept."""
    folder = parse_reference(str(reference), EMBEDDERS).path
    if not folder.is_dir():
        raise UserError(f"a score map is kept in a folder of the new model; {reference} is not one")
    return folder


def _note_roles(query: Embedder, gallery: Embedder, request: EvaluationRequest) -> None:
    """Note if the two models seem to be in each other's place, or are the same."""
    if query.fingerprint and query.fingerprint == gallery.fingerprint:
        progress.note(
            f"{request.query} and {request.gallery} are the same model: there is no upgrade to test"
        )
    elif isinstance(gallery, Model) and gallery.old_fingerprint == query.fingerprint:
        progress.note(
            f"{request.gallery} was trained to search the gallery of {request.query}: for that "
            "test, exchange --query and --gallery; this one is about old clients"
        )
    elif isinstance(query, Model) and query.old_fingerprint not in (None, gallery.fingerprint):
        progress.note(
            f"{request.query} was trained to search the gallery of model {query.old_fingerprint}, "
            f"not that of {request.gallery}"
        )


def _require_unseen(
    images: ImageSet,
    embedders: Mapping[str | Path, Embedder],
    request: EvaluationRequest,
    lists: tuple[ImageSet, ImageSet] | None = None,
    which: str = "test classes",
) -> None:
    """Refuse images of classes that a model was mostly trained on."""
    models = {str(name): embedder.training_classes for name, embedder in embedders.items()}
    asking = classes_with_queries(images) if lists is None else lists[0].class_names
    seen = count_seen_classes(asking, images.class_source, models)
    seen.require_minority(allowed=request.seen_classes, which=which)


def _require_not_chosen_on(
    images: ImageSet,
    embedders: Mapping[str | Path, Embedder],
    score_map: ScoreMap | None,
    score_scale: float | None,
    request: EvaluationRequest,
) -> None:
    """Refuse images on which a model's weights, its scale or the score map were chosen."""
    roles = {"old": embedders[request.gallery], "new": embedders[request.query]}
    choices = choices_of(
        {role: embedder.training_classes for role, embedder in roles.items()},
        score_map=score_map,
        uses_scale=score_scale is not None,
    )
    if choices:
        compared_choices(choices, choice_on("the test", images), allowed=request.seen_classes)
