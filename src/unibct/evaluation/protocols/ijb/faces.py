"""The aligned faces of a benchmark, and a model's embeddings of them, kept for the next time."""

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
from unibct.models.model import Model
from unibct.progress import Progress, Silent

FOLDER = "loose_crop"
_PIECE = 8192  # rows of a file in the cache: what a killed run loses at the most
# What NumPy's reader lets through when a header is damaged.


@dataclass(frozen=True)
class _Aligned:
    """Reads a row's image and brings its face into position; an id is ``row:name``."""

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
        except UserError as error:  # the reader of the batch names the image
            raise UnreadableImageError(str(error)) from error


def aligned_images(root: Path, meta: Meta) -> ImageSet:
    """Each row of the meta files as an aligned image, a class for each template."""
    folder = root / FOLDER
    missing = [name for name in dict.fromkeys(meta.images) if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of the images that the meta files name, first "
            f"{missing[0]}; unpack the images again, or give precomputed embeddings"
        )
    ids = tuple(f"{row}:{name}" for row, name in enumerate(meta.images))
    templates, labels = np.unique(meta.templates, return_inverse=True)
    names = tuple(str(template) for template in templates.tolist())
    read = _Aligned(folder, meta.landmarks)
    return ImageSet(str(root), ids, labels.astype(np.int64), names, read)


def image_embeddings(
    model: Model,
    root: Path,
    meta: Meta,
    cache: Path,
    *,
    flip_test: bool = True,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """(rows, dim) a model's raw embeddings of all images, from the cache as far as they are there.

    The cache has a folder for each model and state of the images, with files of some thousand
    rows: a run that was killed goes on with the first file that is missing.
    """
    images = aligned_images(root, meta)
    folder = cache / f"{_digest(root, meta)[:16]}-{model.fingerprint[:16]}"
    folder = folder if flip_test else folder.with_name(f"{folder.name}-one-view")
    pixels = unread_pixels(images, *model.input.size)
    vectors = np.empty((len(images), model.dim), dtype=np.float32)
    pieces = {
        folder / f"rows-{start:08}.npy": range(start, min(start + _PIECE, len(images)))
        for start in range(0, len(images), _PIECE)
    }
    left = {file: rows for file, rows in pieces.items() if not _filled(_part(vectors, rows), file)}
    done = len(images) - sum(len(rows) for rows in left.values())
    with (progress or Silent()).task("embedding faces", len(images), done=done) as advance:
        for file, rows in left.items():
            part = _part(vectors, rows)
            part[:] = raw_embeddings(model, pixels, flip_test=flip_test, rows=rows, advance=advance)
            with atomic_file(file) as temporary, temporary.open("wb") as stream:
                np.save(stream, part, allow_pickle=False)
    return vectors


def _part(vectors: NDArray[np.float32], rows: range) -> NDArray[np.float32]:
    return vectors[rows.start : rows.stop]


def _filled(part: NDArray[np.float32], file: Path) -> bool:
    """Whether ``part`` could be taken from a file of the cache, which may be damaged."""
    with suppress(UserError):
        kept = mapped_array(file)
        if (kept.shape, kept.dtype) == (part.shape, part.dtype):
            part[:] = kept
            return True
    return False


def _digest(root: Path, meta: Meta) -> str:
    """Changes with any image's name, size or time, and with any landmark."""
    state = hashlib.sha256(np.ascontiguousarray(meta.landmarks).tobytes())
    for name in meta.images:
        found = (root / FOLDER / name).stat()
        state.update(f"{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return state.hexdigest()
