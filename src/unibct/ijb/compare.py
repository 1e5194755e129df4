"""Two models on IJB-B or IJB-C: embed, pool, test."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct import embeddings
from unibct.errors import UserError
from unibct.evaluate import HEADLINE_FAR
from unibct.ijb.images import image_embeddings
from unibct.ijb.meta import Meta, read_meta
from unibct.ijb.protocol import IjbEvaluation, evaluate_templates
from unibct.ijb.templates import pool_templates
from unibct.models.model import load_model
from unibct.progress import Progress
from unibct.train import pick_device


def compare_on_ijb(
    root: Path,
    query: Path,
    gallery: Path,
    *,
    name: str = "ijbc",
    far: float = HEADLINE_FAR,
    seed: int = 0,
    flip_test: bool = True,
    detector_scores: bool = True,
    media_mean: bool = True,
    cache: Path = Path("runs/cache"),
    device: str = "auto",
    progress: Progress | None = None,
) -> IjbEvaluation:
    """Self, cross and verdict of a new (query) and an old (gallery) model.

    Args:
        root: has ``meta/`` and ``loose_crop/``.
        query: the new model's folder, or its embeddings of all images: a ``.npy`` file with a row
            for each row of the meta files, or an embeddings folder whose ids are image names.
        gallery: the old model's, likewise.
        name: ``ijbc`` or ``ijbb``.
        far: false accept rate of the headline TAR.
        seed: chooses the bootstrap samples.
        flip_test: add the embedding of the mirrored image (models only).
        detector_scores: weight each image by its detector's score.
        media_mean: average the images of a media before the media are summed.
        cache: where models' embeddings of the images are kept.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: told of each image.
    """
    meta = read_meta(root, name)

    def pooled(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        vectors = _given(path, meta)
        if vectors is None:
            model = load_model(path, device=pick_device(device))
            vectors = image_embeddings(
                model, root, meta, cache, flip_test=flip_test, progress=progress
            )
        scores = meta.scores if detector_scores else None
        return pool_templates(
            vectors, meta.templates, meta.media, scores=scores, media_mean=media_mean
        )

    sides = {path: pooled(path) for path in dict.fromkeys((gallery, query))}
    return evaluate_templates(meta, sides[gallery], sides[query], far=far, seed=seed)


def _given(path: Path, meta: Meta) -> NDArray[np.float32] | None:
    """Precomputed embeddings of all image rows; None if ``path`` is a model's folder."""
    if path.suffix == ".npy":
        try:
            vectors: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read as an array: {error}") from error
        if vectors.ndim != 2 or len(vectors) != len(meta.images):
            raise UserError(
                f"{path} has the shape {vectors.shape}; it needs a row for each of the "
                f"{len(meta.images)} rows of the meta files"
            )
        return vectors
    if not (path / embeddings.DESCRIPTION_FILE).is_file():
        return None
    kept = embeddings.open_embeddings(path)
    row = {name: number for number, name in enumerate(kept.ids)}
    missing = [name for name in meta.images if name not in row]
    if missing:
        raise UserError(
            f"{path} has no embedding of {len(missing)} images of the meta files, first "
            f"{missing[0]}"
        )
    return kept.vectors[[row[name] for name in meta.images]]
