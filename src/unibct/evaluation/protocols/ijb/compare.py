"""Two models on IJB-B or IJB-C: embed, pool, test."""

from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from unibct.distributed.device import pick_device
from unibct.embeddings.folder import open_embeddings
from unibct.embeddings.layout import DESCRIPTION_FILE
from unibct.errors import UserError
from unibct.evaluation.evaluate import HEADLINE_FAR
from unibct.evaluation.protocols.ijb.images import image_embeddings
from unibct.evaluation.protocols.ijb.meta import Meta, read_meta
from unibct.evaluation.protocols.ijb.protocol import IjbEvaluation, evaluate_templates
from unibct.evaluation.protocols.ijb.templates import Pooled, pool_templates
from unibct.files import mapped_array
from unibct.models.model import Model, load_model
from unibct.progress import Progress

Source: TypeAlias = Model | NDArray[Any]


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
    normalize_images: bool = False,
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
        normalize_images: scale each image's embedding to length 1 first.
        cache: where models' embeddings of the images are kept.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: told of each image.
    """
    if not 0 < far <= 1:
        raise UserError(f"--far must lie in (0, 1], not {far}")
    meta = read_meta(root, name)
    # Both are opened, and compared, before the first image is embedded: that takes hours.
    sources = {path: _opened(path, meta, device) for path in dict.fromkeys((gallery, query))}
    old_dim, new_dim = (_dim(sources[path]) for path in (gallery, query))
    if old_dim != new_dim:
        raise UserError(
            f"{query} has dimension {new_dim} but {gallery} has dimension {old_dim}: "
            "the one cannot search the other"
        )

    def pooled(path: Path, source: Source) -> Pooled:
        vectors = source
        if isinstance(source, Model):
            vectors = image_embeddings(
                source, root, meta, cache, flip_test=flip_test, progress=progress
            )
        try:
            return pool_templates(
                vectors,
                meta.templates,
                meta.media,
                scores=meta.scores if detector_scores else None,
                media_mean=media_mean,
                normalize_images=normalize_images,
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    sides = {path: pooled(path, source) for path, source in sources.items()}
    return evaluate_templates(meta, sides[gallery], sides[query], far=far, seed=seed)


def _dim(source: Source) -> int:
    return source.dim if isinstance(source, Model) else source.shape[1]


def _opened(path: Path, meta: Meta, device: str) -> Source:
    """The model in a folder, or precomputed embeddings of all image rows."""
    if path.suffix == ".npy":
        vectors = mapped_array(path)
        if vectors.ndim != 2 or len(vectors) != len(meta.images):
            raise UserError(
                f"{path} has the shape {vectors.shape}; it needs a row for each of the "
                f"{len(meta.images)} rows of the meta files"
            )
        if vectors.dtype.kind != "f":
            raise UserError(f"{path} has {vectors.dtype} values; embeddings are floating point")
        return vectors
    if not (path / DESCRIPTION_FILE).is_file():
        return load_model(path, device=pick_device(device))
    kept = open_embeddings(path)
    row = {name: number for number, name in enumerate(kept.ids)}
    missing = [name for name in meta.images if name not in row]
    if missing:
        raise UserError(
            f"{path} has no embedding of {len(missing)} images of the meta files, first "
            f"{missing[0]}"
        )
    return kept.vectors[[row[name] for name in meta.images]]
