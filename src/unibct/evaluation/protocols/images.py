"""Images with classes: a quarter of each class is the gallery, the rest are queries."""

from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.data.readers.table import open_images
from unibct.distributed.device import pick_device
from unibct.distributed.ranks import current_ranks
from unibct.embeddings.extraction import embed_images, embed_images_to_store
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.layout import DESCRIPTION_FILE
from unibct.errors import UserError
from unibct.evaluation.protocols.request import EmbeddingRequest, EvaluationRequest
from unibct.evaluation.upgrade import UpgradeEvaluation, evaluate_upgrade
from unibct.models.folder import load_model
from unibct.progress import Progress


def evaluate_images(request: EvaluationRequest) -> UpgradeEvaluation:
    """Evaluate a new model against an old one on an image set.

    The request's ``query`` and ``gallery`` are model folders, or folders of their embeddings of
    these images.
    """
    images = open_images(request.data, request.images)
    sides = {
        path: _embeddings(path, images, request)
        for path in dict.fromkeys((request.gallery, request.query))
    }
    old, new = sides[request.gallery], sides[request.query]
    if old.vectors.shape[1] != new.vectors.shape[1]:
        raise UserError(
            f"{request.query} has dimension {new.vectors.shape[1]} but {request.gallery} has "
            f"dimension {old.vectors.shape[1]}: the one cannot search the other"
        )
    if request.skip_bad:
        for path, side in sides.items():
            images = _embedded_images(images, side, path, request.progress)
    return evaluate_upgrade(
        old.rows_of(images),
        new.rows_of(images),
        images.labels,
        far=request.far,
        rule=request.threshold_rule,
        seed=request.seed,
    )


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


def _embeddings(path: Path, images: ImageSet, request: EvaluationRequest) -> Embeddings:
    if (path / DESCRIPTION_FILE).is_file():
        return open_embeddings(path)
    model = load_model(path, device=pick_device(request.device))
    return embed_images(model, images, skip_bad=request.skip_bad, progress=request.progress)
