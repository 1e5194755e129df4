"""The faces of IJB: aligned by their landmarks, embedded in both views, kept and read again.

A similarity transform brings a face's five landmarks to their published places. A row of embeddings
is what the protocol pools: the sum of those of the aligned face and of its mirror image.
"""

import hashlib
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.arrays import to_numpy
from unibct.data.decoding import Pixels, UnreadableImageError, decode
from unibct.data.image_set import ImageSet
from unibct.data.loader import unread_pixels
from unibct.distributed.ranks import current_ranks
from unibct.embedders import open_image_embedder
from unibct.embeddings.extraction import raw_embeddings
from unibct.embeddings.forms import FOLDER_FORM
from unibct.embeddings.store import (
    Embeddings,
    open_embeddings,
    read_description,
    require_dtype,
    save_embeddings,
)
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb_files import Meta, read_meta
from unibct.files import atomic_file, mapped_array, require_absent
from unibct.models.embedder import ImageEmbedder

Reals: TypeAlias = NDArray[np.float64]

SIZE = 112
# The published places of eyes, nose and mouth corners, x and y, in an image of 112 × 112.
TEMPLATE = np.array(
    [
        [38.2946, 51.6963],
        [73.5318, 51.5014],
        [56.0252, 71.7366],
        [41.5493, 92.3655],
        [70.7299, 92.2041],
    ]
)


def similarity(points: Any, target: Any) -> Reals:
    """Return the rotation, scale and shift that bring ``points`` nearest to ``target``.

    This is Umeyama's least-squares solution, without reflection. In the plane it is a regression
    of complex numbers: target ≈ factor · point + shift. From twice (n, 2) x and y comes the (2, 3)
    matrix that is multiplied by a column (x, y, 1).
    """
    sources, targets = (_complex(value) for value in (points, target))
    if len(sources) != len(targets):
        raise UserError(f"there are {len(sources)} points but {len(targets)} targets")
    centred = sources - sources.mean()
    variation = float(np.sum(np.abs(centred) ** 2))
    # If all points are equal, rounding can still leave a tiny variation.
    rounding = len(sources) * (np.finfo(np.float64).eps * np.abs(sources).max()) ** 2
    product = complex(np.sum(centred.conj() * (targets - targets.mean())))
    factor = product / variation if variation > rounding else 0j
    if not abs(factor) > 0:
        raise UserError(
            f"the landmarks {np.asarray(points).round(1).tolist()} fix no position; "
            "detect the face again or leave out the image"
        )
    shift = complex(targets.mean() - factor * sources.mean())
    return np.array(
        [[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]]
    )


def _complex(points: Any) -> NDArray[np.complex128]:
    """Return (n,) x + iy of checked points."""
    array = to_numpy(points).astype(np.float64)
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        raise UserError(f"points must have the shape (n, 2), not {array.shape}")
    if not np.isfinite(array).all():
        row = int((~np.isfinite(array).all(axis=1)).argmax())
        raise UserError(f"the landmarks have NaN or infinite values, first in point {row}")
    return array[:, 0] + 1j * array[:, 1]


def align(pixels: Any, points: Any, size: int = SIZE) -> Pixels:
    """Return the face in ``pixels`` with its five ``points`` at the published places.

    Values are interpolated bilinearly, with pixel centres at whole coordinates as in OpenCV's
    ``warpAffine`` (which in addition rounds positions to 1/32), and rounded to the nearest
    integer. Outside the image they are zero. The pixels are uint8, (height, width, 3) or (height,
    width), the points (5, 2) x and y, the result (size, size, 3); the published places are scaled
    with it.
    """
    image = to_numpy(pixels)
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.shape[2:] or (3,)) != (3,):
        raise UserError(
            f"an image must be uint8 of the shape (height, width, 3) or (height, width), "
            f"not {image.dtype} of the shape {image.shape}"
        )
    if not image.size:
        raise UserError("an image has no pixel; leave it out")
    matrix = similarity(points, TEMPLATE * (size / SIZE))
    return warp(np.atleast_3d(image), matrix, size)


def warp(image: Pixels, matrix: Reals, size: int) -> Pixels:
    """Transform an image: the result at (x, y) is the image at ``matrix``⁻¹ (x, y).

    The image is (height, width, channels), where one channel becomes three; the matrix is (2, 3);
    the result is (size, size, 3).
    """
    height, width, channels = image.shape
    inverse = np.linalg.inv(matrix[:, :2])
    places = np.arange(size, dtype=np.float64)
    x, y = (
        (row[0] * (places - matrix[0, 2])) + (row[1] * (places - matrix[1, 2]))[:, None]
        for row in inverse
    )
    # A frame of zeros stands for everything outside the image.
    framed = np.zeros((height + 3, width + 3, channels), dtype=np.uint8)
    framed[1:-2, 1:-2] = image
    flat = framed.reshape(-1, channels)
    column, right = _pixel_and_rest(x, width)
    row, below = _pixel_and_rest(y, height)
    corner = row * framed.shape[1] + column
    total = np.zeros((size * size, channels), dtype=np.float32)
    for offset, weight in (
        (0, (1 - below) * (1 - right)),
        (1, (1 - below) * right),
        (framed.shape[1], below * (1 - right)),
        (framed.shape[1] + 1, below * right),
    ):
        total += flat.take(corner + offset, axis=0) * weight[:, None]
    result = np.rint(total).astype(np.uint8).reshape(size, size, channels)
    return result if channels == 3 else np.repeat(result, 3, axis=2)


def _pixel_and_rest(position: Reals, length: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the framed pixel before each position, and the distance from it, 0…1."""
    position = np.minimum(np.maximum(position.ravel(), -1), length) + 1
    before = position.astype(np.intp)
    return before, (position - before).astype(np.float32)


# The aligned faces of a benchmark, and a model's embeddings of them, which are cached.

IMAGE_FOLDER = "loose_crop"
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
    folder = root / IMAGE_FOLDER
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
    model: ImageEmbedder, root: Path, meta: Meta, cache: Path, *, flip_test: bool = True
) -> NDArray[np.float32]:
    """Return a model's raw embeddings of all images; those in the cache are not computed again.

    The cache has a folder for each model and state of the images, with files of a few thousand
    rows. A run that was killed continues with the first missing file. With ``flip_test`` that of
    the mirrored image is added. The result is (images, dim), not normalised.
    """
    images = aligned_images(root, meta)
    # Stated fingerprints may differ in their last letter only.
    model_digest = hashlib.sha256(model.fingerprint.encode()).hexdigest()
    files = ((name, (root / IMAGE_FOLDER / name).stat()) for name in meta.images)
    state = _digest(meta, (f"{name} {file.st_size} {file.st_mtime_ns}" for name, file in files))
    folder = cache / f"{state[:16]}-{model_digest[:16]}"
    folder = folder if flip_test else folder.with_name(f"{folder.name}-one-view")
    pixels = unread_pixels(images, model.input.frame)
    vectors = np.empty((len(images), model.dim), dtype=np.float32)
    missing: dict[Path, range] = {}
    for start in range(0, len(images), _ROWS_PER_FILE):
        rows = range(start, min(start + _ROWS_PER_FILE, len(images)))
        file = folder / f"rows-{start:08}.npy"
        if not _fill_from_cache(vectors[rows.start : rows.stop], file):
            missing[file] = rows
    done = len(images) - sum(map(len, missing.values()))
    with progress.task("embedding faces", len(images), done=done) as advance:
        for file, rows in missing.items():
            part = vectors[rows.start : rows.stop]
            part[:] = raw_embeddings(model, pixels, flip_test=flip_test, rows=rows, advance=advance)
            with atomic_file(file) as temporary, temporary.open("wb") as stream:
                np.save(stream, part, allow_pickle=False)
    return vectors


def _fill_from_cache(part: NDArray[np.float32], file: Path) -> bool:
    """Copy a file of the cache to ``part``; return False if it is missing or damaged."""
    with suppress(UserError):
        cached = mapped_array(file)
        if (cached.shape, cached.dtype) == (part.shape, part.dtype):
            part[:] = cached
            return True
    return False


def _digest(meta: Meta, images: Iterable[str]) -> str:
    """Return a hash of the landmarks and of what tells each image."""
    state = hashlib.sha256(np.ascontiguousarray(meta.landmarks).tobytes())
    for image in images:
        state.update(f"{image}\n".encode())
    return state.hexdigest()


# A model's embeddings of a benchmark's faces as a folder, which `unibct embed --protocol ijbc`
# writes, or as a file, in place of the model.

NPY_CONTENT = (
    "a row for each row of the meta files: the sum of the embeddings of the aligned face and of "
    "its mirror image, not normalised"
)
_ROWS_LOOKED_AT = 256  # to tell normalised rows
_LENGTH_TOLERANCE = 2e-3  # of a normalised row in half precision


def embed_ijb(
    benchmark: str,
    data: str,
    *,
    model: str | Path,
    out: Path,
    form: str = FOLDER_FORM,
    dtype: str = "float32",
    device: str = "auto",
) -> Embeddings:
    """Embed all faces; what a killed run has done is beside the folder until it is complete."""
    if current_ranks().world > 1:
        raise UserError(f"embed --protocol {benchmark} uses one process; start without torchrun")
    require_absent(out)
    if form != FOLDER_FORM:
        raise UserError(f"the protocol {benchmark} writes a folder, not the form {form}")
    require_dtype(dtype)
    root = Path(data)
    meta = read_meta(root, benchmark)
    embedder = open_image_embedder(
        model, device=device, why=f"the protocol {benchmark} embeds aligned faces"
    )
    partial_rows = out.with_name(f".{out.name}.partial")
    vectors = image_embeddings(embedder, root, meta, partial_rows)
    faces = aligned_images(root, meta)
    embeddings = Embeddings(
        vectors,
        faces.ids,
        faces.labels,
        faces.class_names,
        embedder.fingerprint,
        training_classes=embedder.training_classes,
    )
    save_embeddings(
        embeddings, out, dtype=dtype, source=_digest(meta, meta.images), protocol=benchmark
    )
    shutil.rmtree(partial_rows, ignore_errors=True)
    return open_embeddings(out)


embed_ijbc = partial(embed_ijb, "ijbc")
embed_ijbb = partial(embed_ijb, "ijbb")


def read_face_folder(folder: Path, meta: Meta, benchmark: str) -> NDArray[Any]:
    """Return (rows, dim): what ``unibct embed --protocol`` wrote for these meta files."""
    description = read_description(folder)
    again = f"make it with `unibct embed MODEL DATA --protocol {benchmark}`, or give the model"
    if description.protocol is None:
        raise UserError(
            f"{folder} has one view of each image as it is, normalised; {benchmark} needs both "
            f"views of aligned faces, not normalised: {again}"
        )
    if description.protocol != benchmark:
        raise UserError(
            f"{folder} was made for the protocol {description.protocol}, not {benchmark}: {again}"
        )
    if description.source != _digest(meta, meta.images):
        raise UserError(
            f"{folder} was made with other meta files (images or landmarks differ): {again}"
        )
    return np.asarray(open_embeddings(folder).vectors)


def read_face_array(path: Path, meta: Meta, *, lengths_count: bool) -> NDArray[Any]:
    """Return (rows, dim) from a ``.npy`` file, which must hold ``NPY_CONTENT``.

    If ``lengths_count``, the rows' lengths are weights when they are pooled, and a file with
    normalised rows is refused.
    """
    vectors = mapped_array(path)
    if vectors.ndim != 2 or len(vectors) != len(meta.images):
        raise UserError(
            f"{path} has the shape {vectors.shape}; it needs a row for each of the "
            f"{len(meta.images)} rows of the meta files"
        )
    if vectors.dtype.kind != "f":
        raise UserError(f"{path} has {vectors.dtype} values; embeddings are floating point")
    lengths = np.linalg.norm(vectors[:_ROWS_LOOKED_AT].astype(np.float64), axis=1)
    if lengths_count and (np.abs(lengths - 1) < _LENGTH_TOLERANCE).all():
        raise UserError(
            f"{path} has normalised rows (length 1); it needs {NPY_CONTENT}. With "
            "normalize_images the lengths do not count"
        )
    return vectors
