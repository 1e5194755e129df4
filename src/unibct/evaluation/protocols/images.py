"""Two models (or their embeddings) on one data set: embed, then evaluate."""

from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.distributed.device import pick_device
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.layout import DESCRIPTION_FILE
from unibct.errors import UserError
from unibct.evaluation.evaluate import HEADLINE_FAR, Evaluation, evaluate_upgrade
from unibct.models.model import load_model
from unibct.progress import Progress

PROTOCOLS = ("images", "pairs", "ijbc", "ijbb")


def recognised_protocol(data: str, protocol: str = "auto") -> str:
    """The protocol by which a data set is evaluated; ``auto``: by what it is."""
    if protocol in PROTOCOLS:
        return protocol
    if protocol != "auto":
        raise UserError(f"unknown protocol {protocol!r}; choose auto, {', '.join(PROTOCOLS)}")
    if data.endswith(".bin"):
        return "pairs"
    for name in ("ijbc", "ijbb"):
        if (Path(data) / "meta" / f"{name}_face_tid_mid.txt").is_file():
            return name
    return "images"


def compare(
    images: ImageSet,
    query: Path,
    gallery: Path,
    *,
    far: float = HEADLINE_FAR,
    seed: int = 0,
    skip_bad: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> Evaluation:
    """Self, cross and verdict of a new (query) and an old (gallery) model.

    Args:
        images: the test set.
        query: the new model's folder, or a folder of its embeddings of these images.
        gallery: the old model's, likewise.
        far: false accept rate of the headline TAR.
        seed: chooses the template images and the bootstrap samples.
        skip_bad: leave unreadable images out instead of refusing.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: told of each image.
    """
    if not 0 < far <= 1:
        raise UserError(f"--far must lie in (0, 1], not {far}")
    sides = {
        path: _embeddings(path, images, skip_bad=skip_bad, device=device, progress=progress)
        for path in dict.fromkeys((gallery, query))
    }
    old, new = sides[gallery], sides[query]
    if old.vectors.shape[1] != new.vectors.shape[1]:
        raise UserError(
            f"{query} has dimension {new.vectors.shape[1]} but {gallery} has dimension "
            f"{old.vectors.shape[1]}: the one cannot search the other"
        )
    if skip_bad:
        for path, side in sides.items():
            images = _embedded_images(images, side, path, progress)
    return evaluate_upgrade(
        old.rows_of(images), new.rows_of(images), images.labels, far=far, seed=seed
    )


def _embedded_images(
    images: ImageSet, side: Embeddings, path: Path, progress: Progress | None
) -> ImageSet:
    """The images that a side has; the others are counted aloud."""
    known = set(side.ids)
    kept = [i for i, name in enumerate(images.ids) if name in known]
    if not kept:
        raise UserError(f"{path} has no embedding of any image of {images.name}")
    if len(kept) < len(images) and progress is not None:
        progress.note(f"left out {len(images) - len(kept)} images without embedding in {path}")
    return images.select(kept)


def _embeddings(
    path: Path, images: ImageSet, *, skip_bad: bool, device: str, progress: Progress | None
) -> Embeddings:
    if (path / DESCRIPTION_FILE).is_file():
        return open_embeddings(path)
    model = load_model(path, device=pick_device(device))
    return embed_images(model, images, skip_bad=skip_bad, progress=progress)
