"""Images with classes: a quarter of each class forms the gallery, the rest are queries."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from unibct import progress
from unibct.data.image_set import ImageSet, require_outside, select_listed
from unibct.data.training_classes import SCORE_MAP_FITTED, Choice, TrainingClasses, choice_on
from unibct.distributed.ranks import current_ranks
from unibct.embedders import EMBEDDERS, Opener, open_embedder, parse_reference
from unibct.embeddings.extraction import embed, embed_with_models
from unibct.embeddings.forms import FOLDER_FORM, FORMS
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import open_data, require_stored
from unibct.errors import UserError
from unibct.evaluation.blending import AlphaChoice, choose_alpha
from unibct.evaluation.evaluation import Evaluated, EvaluatedData, EvaluatedModel, UpgradeEvaluation
from unibct.evaluation.options import EvaluationOptions
from unibct.evaluation.pixel_baseline import embedder_frame
from unibct.evaluation.protocols import is_same
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
from unibct.evaluation.templates import (
    GALLERY_SHARE,
    GallerySplit,
    chosen_gallery,
    require_searchable,
)
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.files import partial_folder
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.models.old_space import known_score_scale, old_space_dim, to_old_space

_SCORES_FOR_CURVES = 20_000_000  # of one search: all curves then take a minute at most


class _Models(NamedTuple):
    """The two models, and what the user called them."""

    old: Embedder
    new: Embedder
    old_name: str
    new_name: str

    def trained(self) -> dict[str, TrainingClasses]:
        """Return what each has learnt from, by its role."""
        return {"old": self.old.training_classes, "new": self.new.training_classes}


def evaluate_images(
    data: str | Path | ImageSet,
    *,
    old: str | Path | Embedder,
    new: str | Path | Embedder,
    options: EvaluationOptions,
    device: str = "auto",
) -> UpgradeEvaluation:
    """Evaluate a new model against an old one on an image set."""
    images = data
    if not isinstance(images, ImageSet):
        images = open_data(images, options.images, skip_bad=options.skip_bad_images)
    images, lists = _listed_images(images, options)
    # Embedding may take hours: whatever can be refused is refused before it begins.
    models = _opened(old, new, device)
    project = _projection(models)
    _note_roles(models)
    asking = classes_with_queries(images) if lists is None else lists[0].class_names
    _require_unseen(asking, images.class_source, models, options)
    if lists is None:
        require_searchable(images.labels, images.name)
    validation = _validation_images(images, models, options)
    score_map = _kept_score_map(models, options)
    score_scale = known_score_scale(models.new, models.old.fingerprint)
    choices = choices_of(models.trained(), score_map=score_map, uses_scale=score_scale is not None)
    if choices:
        compared_choices(choices, choice_on("the test", images), allowed=options.seen_classes)
    old_side, new_side, images = _embedded(images, models)
    split = None if lists is None else _listed_split(images, lists, options)
    old_rows, new_rows = old_side.of_images(images), new_side.of_images(images)
    if options.backfill_curve is None:
        options = replace(options, backfill_curve=_curves_are_quick(images, split))
    evaluation = evaluate_embeddings(
        images.labels,
        old=old_rows,
        new=new_rows,
        projected=None if project is None else project(new_rows.vectors),
        images=images,
        frame=embedder_frame(models.old),
        split=split,
        score_map=score_map,
        score_scale=score_scale,
        alpha=_chosen_alpha(validation, models, project, options),
        evaluated=Evaluated(
            EvaluatedModel.of(models.old, old_rows.vectors),
            EvaluatedModel.of(models.new, new_rows.vectors),
            EvaluatedData.of(images),
        ),
        options=options,
    )
    if options.save_score_map:
        tested = images.select(evaluation.tested_images)
        choice = choice_on(SCORE_MAP_FITTED, tested).with_vectors(old_side.rows_of(tested))
        _save_score_map(evaluation, choice, models)
    return evaluation


# The models: opened, compared with each other, and asked for embeddings.


def _opened(old: str | Path | Embedder, new: str | Path | Embedder, device: str) -> _Models:
    """Open both models; one that is on both sides is opened once."""
    opener = Opener(device)
    old_model = opener.open(old)
    new_model = old_model if is_same(old, new) else opener.open(new)
    names = (
        str(given) if isinstance(given, (str, Path)) else model.name
        for given, model in ((old, old_model), (new, new_model))
    )
    return _Models(old_model, new_model, *names)


def _projection(models: _Models) -> Callable[[Any], Any] | None:
    """Return what projects the new embeddings into the old space; None for equal dimensions."""
    new, old = models.new, models.old
    if new.dim == old.dim:
        return None
    differ = f"{models.new_name} has dimension {new.dim} but {models.old_name} has dimension "
    differ += str(old.dim)
    if not isinstance(new, Model) or old_space_dim(new) != old.dim:
        raise UserError(
            f"{differ}: one cannot search the other; give the folder of a model that was trained "
            "with the old model, or map one into the other's space with `unibct adapt`"
        )
    if new.old_fingerprint != old.fingerprint:
        raise UserError(
            f"{differ}, and the new model's projection leads into the space of model "
            f"{new.old_fingerprint}, not of {old.fingerprint}"
        )
    return partial(to_old_space, new)


def _note_roles(models: _Models) -> None:
    """Note if the two models seem to be in each other's place, or are the same."""
    new, old = models.new, models.old
    if new.fingerprint and new.fingerprint == old.fingerprint:
        progress.note(
            f"{models.new_name} and {models.old_name} are the same model: there is no upgrade to "
            "test"
        )
    elif isinstance(old, Model) and old.old_fingerprint == new.fingerprint:
        progress.note(
            f"{models.old_name} was trained to search the gallery of {models.new_name}: for that "
            "test, exchange the new and the old model; this one is about old clients"
        )
    elif isinstance(new, Model) and new.old_fingerprint not in (None, old.fingerprint):
        progress.note(
            f"{models.new_name} was trained to search the gallery of model {new.old_fingerprint}, "
            f"not that of {models.old_name}"
        )


def _embedded(images: ImageSet, models: _Models) -> tuple[Embeddings, Embeddings, ImageSet]:
    """Return the old and the new embeddings, and the images of which both models have one."""
    if not images.skip_bad:
        require_stored((models.old, models.new), images)
    one = models.new is models.old
    sides = embed_with_models([models.old] if one else [models.old, models.new], images)
    old, new = sides[0], sides[-1]
    if images.skip_bad:
        for side in (old, new):
            known_ids = set(side.ids)
            rows = [row for row, image_id in enumerate(images.ids) if image_id in known_ids]
            images = images if len(rows) == len(images) else images.select(rows)
    return old, new, images


def _require_unseen(
    asking: Sequence[str],
    source: str | None,
    models: _Models,
    options: EvaluationOptions,
    which: str = "test classes",
) -> None:
    """Refuse classes with queries that a model was mostly trained on; ``source`` numbered them."""
    seen = count_seen_classes(asking, source, models.trained())
    seen.require_minority(allowed=options.seen_classes, which=which)


# What the options ask for: listed queries, curves, a share of blended queries, a score map.


def _listed_images(
    images: ImageSet, options: EvaluationOptions
) -> tuple[ImageSet, tuple[ImageSet, ImageSet] | None]:
    """Return the images that are tested; and the queries and the gallery's images, if listed."""
    if options.queries is None or options.gallery_images is None:
        return images, None
    lists = (select_listed(images, options.queries), select_listed(images, options.gallery_images))
    both = set(lists[0].ids) & set(lists[1].ids)
    if both:
        raise UserError(f"{min(both)!r} is in {options.queries} and in {options.gallery_images}")
    rows = [images.position[image_id] for part in lists for image_id in part.ids]
    chosen = images.select(sorted(rows))
    _listed_split(chosen, lists, options)
    return chosen, lists


def _listed_split(
    images: ImageSet, lists: tuple[ImageSet, ImageSet], options: EvaluationOptions
) -> GallerySplit:
    """Return which images are queries and which are in the gallery; some may be left out."""
    query, gallery = (
        [images.position[image_id] for image_id in part.ids if image_id in images.position]
        for part in lists
    )
    enrolled = set(images.labels[gallery].tolist())
    missing = [name for label, name in enumerate(images.class_names) if label not in enrolled]
    if missing:
        raise UserError(
            f"the class {min(missing)!r} has queries but no image in {options.gallery_images}"
        )
    return chosen_gallery(images.labels, query=query, gallery=gallery)


def _curves_are_quick(images: ImageSet, split: GallerySplit | None) -> bool:
    rows = round(len(images) * GALLERY_SHARE) if split is None else len(split.gallery)
    queries = len(images) - rows
    return queries * (rows + len(images.class_names)) <= _SCORES_FOR_CURVES  # mAP ranks all images


def _validation_images(
    images: ImageSet, models: _Models, options: EvaluationOptions
) -> ImageSet | None:
    """Return the images on which the share of the new query is chosen, if any were given."""
    name = options.alpha_from
    if name is None:
        return None
    validation = open_data(name, skip_bad=options.skip_bad_images)
    common = set(images.class_identities) & set(validation.class_identities)
    if common:
        raise UserError(
            f"{name} and {images.name} have {len(common)} classes in common, first "
            f"{min(common)!r}: choose alpha on classes that are not tested"
        )
    asking, which = classes_with_queries(validation), f"classes of {name} (alpha_from)"
    _require_unseen(asking, validation.class_source, models, options, which)
    require_searchable(validation.labels, validation.name)
    return validation


def _chosen_alpha(
    validation: ImageSet | None,
    models: _Models,
    project: Callable[[Any], Any] | None,
    options: EvaluationOptions,
) -> AlphaChoice | None:
    """Choose the share of the new query in blended queries, if there are images for it."""
    if validation is None:
        return None
    old, new, validation = _embedded(validation, models)
    new_rows = new.of_images(validation)
    return choose_alpha(
        validation.labels,
        old=old.of_images(validation),
        new=new_rows if project is None else project(new_rows.vectors),
        seed=options.seed,
        mode=options.gallery_mode,
        chosen_on=options.alpha_from,
    )


def _kept_score_map(models: _Models, options: EvaluationOptions) -> ScoreMap | None:
    """Return the new model's map if it is asked for; refuse what would stop ``_save_score_map``."""
    if options.old_thresholds or options.save_score_map:
        kept_score_maps(_folder_of(models.new_name))  # refuses a damaged file
    if not options.old_thresholds:
        return None
    return load_score_map(_folder_of(models.new_name), models.old.fingerprint)


def _save_score_map(evaluation: UpgradeEvaluation, fitted_on: Choice, models: _Models) -> None:
    """Fit a score map on the whole test, and keep it with the new model."""
    cross, old_self = evaluation.tests[CROSS], evaluation.tests[OLD_SELF]
    old_fingerprint = models.old.fingerprint
    try:
        fitted = replace(fit_score_map(cross.impostor, old_self.impostor), fitted_on=fitted_on)
        folder = _folder_of(models.new_name)
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


def _folder_of(reference: str) -> Path:
    """Return the folder in which a score map is kept."""
    folder = parse_reference(reference, EMBEDDERS).path
    if not folder.is_dir():
        raise UserError(f"a score map is kept in a folder of the new model; {reference} is not one")
    return folder


def embed_image_set(
    data: str,
    *,
    model: str | Path,
    out: Path,
    images: Path | None = None,
    form: str = FOLDER_FORM,
    dtype: str = "float32",
    skip_bad_images: bool = False,
    device: str = "auto",
) -> Embeddings:
    """Write a model's normalised embeddings of an image set; under torchrun by all processes.

    A form other than the folder is written from a hidden folder beside it, which a killed run
    leaves for the next one.
    """
    writer, ranks = FORMS.find(form), current_ranks()
    if form != FOLDER_FORM:
        writer.load().require_writable(out)
        if dtype != "float32":
            raise UserError(f"dtype {dtype} is for the form {FOLDER_FORM} only")
    embedder = open_embedder(model, device=device)
    given = open_data(data, images, skip_bad=skip_bad_images)
    if form == FOLDER_FORM:
        require_outside(given, out)
    folder = out if form == FOLDER_FORM else partial_folder(out)
    stored = embed(embedder, given, out=folder, dtype=dtype, ranks=ranks)
    if form == FOLDER_FORM:
        return stored
    if ranks.first:
        writer.load().write(stored, out)
    ranks.barrier()
    written = writer.load().read(out)
    if ranks.first:
        shutil.rmtree(folder, ignore_errors=True)
    return written
