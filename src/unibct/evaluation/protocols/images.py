"""Images with classes: a quarter of each class forms the gallery, the rest are queries."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from unibct.arrays import Floats
from unibct.data.image_set import ImageSet, select_listed
from unibct.data.readers.table import open_images
from unibct.distributed.device import pick_device
from unibct.distributed.ranks import current_ranks
from unibct.embeddings.extraction import embed_images, embed_images_to_store
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.layout import DESCRIPTION_FILE
from unibct.embeddings.strength import Strength
from unibct.errors import UserError
from unibct.evaluation.directions import CROSS, OLD_SELF
from unibct.evaluation.gallery_split import GallerySplit, chosen_gallery
from unibct.evaluation.pixel_baseline import model_frame, old_model_strength
from unibct.evaluation.protocols.request import EmbeddingRequest, EvaluationRequest, SearchRules
from unibct.evaluation.score_map import fit_score_map
from unibct.evaluation.score_map_file import load_score_map, save_score_map
from unibct.evaluation.seen_classes import count_seen_classes
from unibct.evaluation.upgrade import UpgradeEvaluation, evaluate_upgrade
from unibct.models.folder import load_model
from unibct.models.model import Model
from unibct.progress import Progress

_SCORES_FOR_CURVES = 10_000_000  # images × classes: a curve then takes half a minute at most


def evaluate_images(request: EvaluationRequest) -> UpgradeEvaluation:
    """Evaluate a new model against an old one on an image set.

    The request's ``query`` and ``gallery`` are model folders, or folders of their embeddings of
    these images.
    """
    rules = request.search
    images = open_images(request.data, request.images)
    # Embedding may take hours, so both are opened and compared with the classes before it begins.
    sources = {
        path: _opened(path, request) for path in dict.fromkeys((request.gallery, request.query))
    }
    _require_unseen(images, sources, request)
    sides = {path: _embeddings(source, images, request) for path, source in sources.items()}
    old, new = sides[request.gallery], sides[request.query]
    if old.vectors.shape[1] != new.vectors.shape[1]:
        raise UserError(
            f"{request.query} has dimension {new.vectors.shape[1]} but {request.gallery} has "
            f"dimension {old.vectors.shape[1]}: one cannot search the other"
        )
    if request.skip_bad:
        for path, side in sides.items():
            images = _embedded_images(images, side, path, request.progress)
    score_map = load_score_map(request.query, old.fingerprint) if rules.old_thresholds else None
    images, split = _listed_split(images, rules)
    evaluation = evaluate_upgrade(
        old.of_images(images),
        new.of_images(images),
        images.labels,
        seen_classes=request.seen_classes,
        far=request.far,
        rule=request.threshold_rule,
        seed=request.seed,
        split=split,
        mode=rules.mode,
        score_map=score_map,
        backfill_curves=_wants_curves(rules, images),
        progress=request.progress,
    )
    evaluation = replace(evaluation, old_model=_old_model(old.rows_of(images), images, request))
    if rules.save_score_map:
        cross, old_self = evaluation.tests[CROSS], evaluation.tests[OLD_SELF]
        fitted = fit_score_map(cross.impostor, old_self.impostor)
        path = save_score_map(request.query, old.fingerprint, fitted)
        request.progress.note(f"{path}: the score map for the old model {old.fingerprint}")
    return evaluation


def _old_model(vectors: Floats, images: ImageSet, request: EvaluationRequest) -> Strength | None:
    """Compare the old model with raw pixels; stored embeddings may be all that is left."""
    frame = model_frame(request.gallery)
    try:
        return old_model_strength(vectors, images.labels, images, frame=frame, seed=request.seed)
    except UserError as error:
        request.progress.note(f"the old model is not compared with raw pixels: {error}")
        return None


def _wants_curves(rules: SearchRules, images: ImageSet) -> bool:
    if rules.backfill_curve is not None:
        return rules.backfill_curve
    return len(images) * len(images.class_names) <= _SCORES_FOR_CURVES


def _listed_split(images: ImageSet, rules: SearchRules) -> tuple[ImageSet, GallerySplit | None]:
    """Return the images that the two lists name, and which of them are queries."""
    if rules.queries is None and rules.gallery_images is None:
        return images, None
    if rules.queries is None or rules.gallery_images is None:
        raise UserError("--queries and --gallery-images go together: give both lists")
    sides = [select_listed(images, path) for path in (rules.queries, rules.gallery_images)]
    both = set(sides[0].ids) & set(sides[1].ids)
    if both:
        raise UserError(f"{min(both)!r} is in {rules.queries} and in {rules.gallery_images}")
    rows = [[images.position[image_id] for image_id in side.ids] for side in sides]
    chosen = images.select(sorted([*rows[0], *rows[1]]))
    missing = set(chosen.class_names) - set(sides[1].class_names)
    if missing:
        raise UserError(
            f"the class {min(missing)!r} has queries but no image in {rules.gallery_images}"
        )
    places = [[chosen.position[image_id] for image_id in side.ids] for side in sides]
    return chosen, chosen_gallery(chosen.labels, query=places[0], gallery=places[1])


def embed_image_set(request: EmbeddingRequest) -> Embeddings:
    """Write a model's normalised embeddings of an image set; under torchrun by all processes."""
    model = load_model(request.model, device=pick_device(request.device))
    return embed_images_to_store(
        model,
        open_images(request.data, request.images),
        request.out,
        skip_bad=request.skip_bad,
        dtype=request.dtype,
        progress=request.progress,
        ranks=current_ranks(),
    )


def _embedded_images(
    images: ImageSet, side: Embeddings, path: Path, progress: Progress
) -> ImageSet:
    """Return the images that have an embedding, and report how many have none."""
    known_ids = set(side.ids)
    rows = [row for row, image_id in enumerate(images.ids) if image_id in known_ids]
    if not rows:
        raise UserError(f"{path} has no embedding of any image of {images.name}")
    if len(rows) < len(images):
        progress.note(f"left out {len(images) - len(rows)} images without embedding in {path}")
    return images.select(rows)


def _opened(path: Path, request: EvaluationRequest) -> Model | Embeddings:
    """Open an embeddings folder, or load the model in a folder."""
    if (path / DESCRIPTION_FILE).is_file():
        return open_embeddings(path)
    return load_model(path, device=pick_device(request.device), with_classifier=False)


def _require_unseen(
    images: ImageSet, sources: Mapping[Path, Model | Embeddings], request: EvaluationRequest
) -> None:
    """Refuse a test on classes that a model was mostly trained on."""
    models = {str(path): source.training_classes for path, source in sources.items()}
    seen = count_seen_classes(images.class_names, images.class_source, models)
    seen.require_minority(allowed=request.seen_classes)


def _embeddings(
    source: Model | Embeddings, images: ImageSet, request: EvaluationRequest
) -> Embeddings:
    """Return stored embeddings, or embed the images with a model."""
    if isinstance(source, Embeddings):
        return source
    return embed_images(source, images, skip_bad=request.skip_bad, progress=request.progress)
