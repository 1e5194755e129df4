"""The aligned faces of a benchmark, and a model's embeddings of them, which are cached."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, UnreadableImageError, decode
from unibct.data.image_set import ImageSet
from unibct.data.loader import unread_pixels
from unibct.embeddings.extraction import raw_embeddings
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb.align import align
from unibct.evaluation.protocols.ijb.meta import Meta
from unibct.files import atomic_file, mapped_array
from unibct.models.embedder import ImageEmbedder
from unibct.progress import Progress, Silent

FOLDER = "loose_crop"
_ROWS_PER_FILE = 8192  # of the cache; a killed run loses at most this many embeddings


@dataclass(frozen=True)
class _AlignedReader:
    """Reads the image of a row and aligns its face; an id is ``row:name``."""

    folder: Path
    landmarks: NDArray[np.float32]

    def __call__(self, image_id: str) -> Pixels:
        row, _, name = image_id.partition(":")
        try:
            data = (self.folder / name).read_bytes()
        except OSError as error:
            raise UnreadableImageError(error.strerror or str(error)) from error
        pixels = decode(data)
        try:
            return align(pixels, self.landmarks[int(row)])
        except UserError as error:  # the loader adds the image's id to the message
            raise UnreadableImageError(str(error)) from error


def aligned_images(root: Path, meta: Meta) -> ImageSet:
    """Return an aligned image for each row of the meta files, with the templates as classes."""
    folder = root / FOLDER
    missing = [name for name in dict.fromkeys(meta.images) if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of the images that the meta files name, first "
            f"{missing[0]}; unpack the images again, or give precomputed embeddings"
        )
    ids = tuple(f"{row}:{name}" for row, name in enumerate(meta.images))
    templates, labels = np.unique(meta.templates, return_inverse=True)
    class_names = tuple(str(template) for template in templates.tolist())
    read = _AlignedReader(folder, meta.landmarks)
    return ImageSet(str(root), ids, labels.astype(np.int64), class_names, read)


def image_embeddings(
    model: ImageEmbedder,
    root: Path,
    meta: Meta,
    cache: Path,
    *,
    flip_test: bool = True,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Return a model's raw embeddings of all images; those in the cache are not computed again.

    The cache has a folder for each model and state of the images, with files of a few thousand
    rows. A run that was killed continues with the first missing file.

    Args:
        model: the model.
        root: the folder of the benchmark.
        meta: its meta files.
        cache: where the embeddings are kept.
        flip_test: add the embedding of the mirrored image.
        progress: reports progress per image.

    Returns:
        (images, dim), not normalised.
    """
    images = aligned_images(root, meta)
    # Stated fingerprints may differ in their last letter only.
    model_digest = hashlib.sha256(model.fingerprint.encode()).hexdigest()
    folder = cache / f"{_digest(root, meta)[:16]}-{model_digest[:16]}"
    folder = folder if flip_test else folder.with_name(f"{folder.name}-one-view")
    pixels = unread_pixels(images, model.input.frame)
    vectors = np.empty((len(images), model.dim), dtype=np.float32)
    rows_in_file = {
        folder / f"rows-{start:08}.npy": range(start, min(start + _ROWS_PER_FILE, len(images)))
        for start in range(0, len(images), _ROWS_PER_FILE)
    }
    missing = {
        file: rows
        for file, rows in rows_in_file.items()
        if not _fill_from_cache(_view(vectors, rows), file)
    }
    done = len(images) - sum(len(rows) for rows in missing.values())
    with (progress or Silent()).task("embedding faces", len(images), done=done) as advance:
        for file, rows in missing.items():
            part = _view(vectors, rows)
            part[:] = raw_embeddings(model, pixels, flip_test=flip_test, rows=rows, advance=advance)
            with atomic_file(file) as temporary, temporary.open("wb") as stream:
                np.save(stream, part, allow_pickle=False)
    return vectors


def _view(vectors: NDArray[np.float32], rows: range) -> NDArray[np.float32]:
    return vectors[rows.start : rows.stop]


def _fill_from_cache(part: NDArray[np.float32], file: Path) -> bool:
    """Copy a file of the cache to ``part``; return False if it is missing or damaged."""
    with suppress(UserError):
        cached = mapped_array(file)
        if (cached.shape, cached.dtype) == (part.shape, part.dtype):
            part[:] = cached
            return True
    return False


def _digest(root: Path, meta: Meta) -> str:
    """Return a hash of the landmarks and of the images' names, sizes and modification times."""
    state = hashlib.sha256(np.ascontiguousarray(meta.landmarks).tobytes())
    for name in meta.images:
        status = (root / FOLDER / name).stat()
        state.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return state.hexdigest()
