"""`npy`: vectors in ``NAME.npy``, and beside it a line for each row in ``NAME.ids.txt``.

``NAME.labels.txt`` has the classes, if they are known, and ``NAME.model.txt`` the fingerprint of
the model.
"""

from pathlib import Path

import numpy as np

from unibct.embeddings.forms.lines import classes_of, encoded_lines, names_of, read_lines
from unibct.embeddings.store import Embeddings, read_text
from unibct.errors import UserError
from unibct.files import (
    atomic_file,
    leftovers,
    mapped_array,
    partial_folder,
    require_absent,
)

SUFFIX = ".npy"
_BLOCK = 65_536  # rows that are written at a time
_BESIDE = ("ids", "labels", "model")


def recognises(path: Path) -> bool:
    """Return whether a path is a ``.npy`` file."""
    return path.suffix == SUFFIX and path.is_file()


def read(path: Path) -> Embeddings:
    """Read the vectors (float32 is memory-mapped) and the files beside. Nothing is unpickled."""
    vectors = mapped_array(path)
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise UserError(f"{path} must have the shape (rows, dim), not {vectors.shape}")
    if vectors.dtype.kind != "f":
        raise UserError(f"{path} has {vectors.dtype} values; embeddings are floating point")
    ids_path = _beside(path, "ids")
    if not ids_path.is_file():
        raise UserError(
            f"{path} has no ids: put {ids_path.name} beside it, with the id of each row on a line"
        )
    rows, labels_path, model_path = len(vectors), _beside(path, "labels"), _beside(path, "model")
    names = read_lines(labels_path, rows) if labels_path.is_file() else None
    fingerprint = read_text(model_path).strip() if model_path.is_file() else ""
    vectors = vectors.astype(np.float32, copy=False)
    return Embeddings(vectors, read_lines(ids_path, rows), *classes_of(names, rows), fingerprint)


def require_writable(path: Path) -> None:
    """Refuse another ending, and what exists already, also of the files beside.

    Those that a killed run has left are no obstacle: beside them is its hidden file or folder.
    """
    _require_new(path)
    if not (partial_folder(path).exists() or leftovers(path)):
        for what in _BESIDE:
            require_absent(_beside(path, what))


def write(embeddings: Embeddings, path: Path) -> None:
    """Write a hidden file with the vectors, then the files beside; its new name completes them.

    A file beside it that was left by a killed process is taken, if it is the same.
    """
    _require_new(path)
    texts = {"ids": encoded_lines(embeddings.ids, "id")}
    if embeddings.class_names:
        names = names_of(embeddings.labels, embeddings.class_names)
        texts["labels"] = encoded_lines(names, "class name")
    if embeddings.fingerprint:
        texts["model"] = f"{embeddings.fingerprint}\n".encode()
    for what in _BESIDE:
        place = _beside(path, what)
        if not place.is_file() or place.read_bytes() != texts.get(what):
            require_absent(place)
    with atomic_file(path, alone=True) as temporary:
        mapped = np.lib.format.open_memmap(
            temporary, mode="w+", dtype=np.float32, shape=embeddings.vectors.shape
        )
        for start in range(0, len(embeddings), _BLOCK):
            mapped[start : start + _BLOCK] = embeddings.vectors[start : start + _BLOCK]
        mapped.flush()
        for what, text in texts.items():
            with atomic_file(_beside(path, what), alone=True) as temporary_beside:
                temporary_beside.write_bytes(text)


def _require_new(path: Path) -> None:
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: the name must end in {SUFFIX}")
    require_absent(path)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.stem}.{what}.txt")
