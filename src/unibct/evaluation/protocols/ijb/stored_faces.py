"""A model's embeddings of a benchmark's faces as a folder or a file, in place of the model.

`unibct embed --protocol ijbc` writes the folder. A row is what the protocol pools: the sum of the
embeddings of the aligned face and of its mirror image, not normalised.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.distributed.ranks import current_ranks
from unibct.embedders.table import open_image_embedder
from unibct.embeddings.folder import Embeddings, open_embeddings, read_description
from unibct.embeddings.forms.table import FOLDER
from unibct.embeddings.writing import require_dtype, save_embeddings
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb.faces import aligned_images, image_embeddings
from unibct.evaluation.protocols.ijb.meta import Meta, read_meta
from unibct.evaluation.protocols.request import EmbeddingRequest
from unibct.files import mapped_array, require_absent

NPY_CONTENT = (
    "a row for each row of the meta files: the sum of the embeddings of the aligned face and of "
    "its mirror image, not normalised"
)
_ROWS_LOOKED_AT = 256  # to tell normalised rows
_LENGTH_TOLERANCE = 2e-3  # of a normalised row in half precision


def embed_ijbc(request: EmbeddingRequest) -> Embeddings:
    """Write a model's embeddings of IJB-C's faces."""
    return _embed(request, "ijbc")


def embed_ijbb(request: EmbeddingRequest) -> Embeddings:
    """Write a model's embeddings of IJB-B's faces."""
    return _embed(request, "ijbb")


def _embed(request: EmbeddingRequest, benchmark: str) -> Embeddings:
    """Embed all faces; what a killed run has done is beside the folder until it is complete."""
    if current_ranks().world > 1:
        raise UserError(f"embed --protocol {benchmark} uses one process; start without torchrun")
    require_absent(request.out)
    if request.form != FOLDER:
        raise UserError(f"embed --protocol {benchmark} writes a folder; leave --to out")
    require_dtype(request.dtype)
    root = Path(request.data)
    meta = read_meta(root, benchmark)
    model = open_image_embedder(
        request.model,
        device=request.device,
        progress=request.progress,
        why=f"--protocol {benchmark} embeds aligned faces",
    )
    partial = request.out.with_name(f".{request.out.name}.partial")
    vectors = image_embeddings(model, root, meta, partial, progress=request.progress)
    faces = aligned_images(root, meta)
    embeddings = Embeddings(
        vectors,
        faces.ids,
        faces.labels,
        faces.class_names,
        model.fingerprint,
        training_classes=model.training_classes,
    )
    save_embeddings(
        embeddings,
        request.out,
        dtype=request.dtype,
        source=_meta_digest(meta),
        protocol=benchmark,
    )
    shutil.rmtree(partial, ignore_errors=True)
    return open_embeddings(request.out)


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
            f"{folder} was made for --protocol {description.protocol}, not {benchmark}: {again}"
        )
    if description.source != _meta_digest(meta):
        raise UserError(
            f"{folder} was made with other meta files (images or landmarks differ): {again}"
        )
    return np.asarray(open_embeddings(folder).vectors)


def read_face_array(path: Path, meta: Meta, *, lengths_count: bool) -> NDArray[Any]:
    """Return (rows, dim) from a ``.npy`` file, which must hold ``NPY_CONTENT``.

    Args:
        path: the file.
        meta: the benchmark's.
        lengths_count: whether the rows' lengths are weights when they are pooled. If so, a file
            with normalised rows is refused.
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
            "--normalize-images the lengths do not count"
        )
    return vectors


def _meta_digest(meta: Meta) -> str:
    """Return a hash of the images' names and landmarks."""
    state = hashlib.sha256(np.ascontiguousarray(meta.landmarks).tobytes())
    for name in meta.images:
        state.update(f"{name}\n".encode())
    return state.hexdigest()
