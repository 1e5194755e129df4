"""`safetensors`: the tensor ``vectors``, and ids and classes as UTF-8 lines in uint8 tensors.

A file by others may have its only matrix under any name, and its ids in ``NAME.ids.txt``.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.embeddings.forms.lines import (
    classes_of,
    decoded_lines,
    encoded_lines,
    names_of,
    read_lines,
)
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.files import atomic_file, require_absent

SUFFIX = ".safetensors"
_FINGERPRINT = "fingerprint"  # in the metadata


def recognises(path: Path) -> bool:
    """Return whether a path is a ``.safetensors`` file."""
    return path.suffix == SUFFIX and path.is_file()


def read(path: Path) -> Embeddings:
    """Read the file; bfloat16 and the other float types are widened or narrowed to float32."""
    import safetensors

    opened: Any = safetensors.safe_open
    try:
        with opened(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            names: list[str] = list(file.keys())
            tensors: dict[str, Any] = {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    vectors = _matrix(path, tensors)
    rows = len(vectors)
    classes = _lines(path, tensors, "labels", rows)
    ids = _lines(path, tensors, "ids", rows)
    if ids is None:
        raise UserError(
            f"{path} has no ids: it needs a uint8 tensor `ids` with the id of each row on a line, "
            f"or {path.stem}.ids.txt beside it"
        )
    return Embeddings(vectors, ids, *classes_of(classes, rows), metadata.get(_FINGERPRINT, ""))


def require_writable(path: Path) -> None:
    """Refuse another ending, and what exists already."""
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: the name must end in {SUFFIX}")
    require_absent(path)


def write(embeddings: Embeddings, path: Path) -> None:
    """Write one file."""
    import safetensors.numpy

    require_writable(path)
    tensors: dict[str, NDArray[Any]] = {
        "vectors": np.ascontiguousarray(embeddings.vectors, dtype=np.float32),
        "ids": _bytes(encoded_lines(embeddings.ids, "id")),
    }
    if embeddings.class_names:
        names = names_of(embeddings.labels, embeddings.class_names)
        tensors["labels"] = _bytes(encoded_lines(names, "class name"))
    with atomic_file(path, alone=True) as temporary:
        metadata = {_FINGERPRINT: embeddings.fingerprint}
        safetensors.numpy.save_file(tensors, temporary, metadata=metadata)


def _matrix(path: Path, tensors: dict[str, Any]) -> NDArray[np.float32]:
    matrices = {n: t for n, t in tensors.items() if t.ndim == 2 and t.dtype.is_floating_point}
    if "vectors" not in matrices and len(matrices) != 1:
        raise UserError(
            f"{path} has {len(matrices)} floating-point matrices; call the embeddings `vectors`"
        )
    matrix = matrices.get("vectors", next(iter(matrices.values())))
    return matrix.float().numpy()


def _lines(path: Path, tensors: dict[str, Any], what: str, rows: int) -> tuple[str, ...] | None:
    beside = path.with_name(f"{path.stem}.{what}.txt")
    if what in tensors:
        if str(tensors[what].dtype) != "torch.uint8":
            raise UserError(f"{path}: the tensor `{what}` must be uint8, lines of UTF-8 text")
        data = np.ascontiguousarray(tensors[what].numpy()).tobytes()
        return decoded_lines(data, f"{path}, tensor `{what}`", rows)
    return read_lines(beside, rows) if beside.is_file() else None


def _bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, dtype=np.uint8)
