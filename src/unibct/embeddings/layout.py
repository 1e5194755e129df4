"""The files of an embeddings folder: their names, their checksums and how one of them is read.

A folder holds numbered shards, each with three files: ``vectors-000000.npy``,
``labels-000000.npy`` and ``ids-000000.txt``. ``classes.txt`` names the classes, and
``training_classes.txt`` has digests of the classes that the model was trained on.
``embeddings.json`` lists the shards, with the size and checksum of every file.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.files import mapped_array

DESCRIPTION_FILE = "embeddings.json"
CLASSES_FILE = "classes.txt"
TRAINING_CLASSES_FILE = "training_classes.txt"
DTYPES = ("float32", "float16")
SHARD_ROWS = 65_536


@dataclass(frozen=True)
class FileDigest:
    """A file's size in bytes and the SHA-256 of its content."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a store.

    Attributes:
        first: the number of the first row in the store.
        rows: how many rows the shard has.
        files: the digest of each of its files, by file name.
    """

    first: int
    rows: int
    files: dict[str, FileDigest]


def require_shard_rows(rows: int) -> None:
    """Refuse files without rows: a negative number of rows would leave all of them out."""
    if rows < 1:
        raise UserError(f"shard_rows must be at least 1, not {rows}")


def vectors_file(number: int) -> str:
    """Return the name of a shard's file of vectors."""
    return f"vectors-{number:06}.npy"


def labels_file(number: int) -> str:
    """Return the name of a shard's file of labels."""
    return f"labels-{number:06}.npy"


def ids_file(number: int) -> str:
    """Return the name of a shard's file of ids."""
    return f"ids-{number:06}.txt"


def shard_from_json(entry: dict[str, Any]) -> Shard:
    """Return the shard that a JSON object describes."""
    files = {name: FileDigest(**digest) for name, digest in entry["files"].items()}
    return Shard(entry["first"], entry["rows"], files)


def shard_is_whole(folder: Path, shard: Shard) -> bool:
    """Return whether all files of a shard exist and have the right content."""
    return all(
        (folder / name).is_file() and file_digest(folder / name) == digest
        for name, digest in shard.files.items()
    )


def file_digest(path: Path) -> FileDigest:
    """Read a file and return its size and checksum."""
    with path.open("rb") as file:
        return FileDigest(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def check_file(path: Path, digest: FileDigest, *, verify: bool) -> None:
    """Raise an error if a file's size differs, or with ``verify`` its checksum."""
    try:
        size = path.stat().st_size
        if size != digest.bytes:
            raise UserError(
                f"{path} is damaged ({size} bytes instead of {digest.bytes}); "
                "embed the images again"
            )
        if verify and file_digest(path) != digest:
            raise UserError(f"{path} is damaged (its checksum differs); embed the images again")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); embed the images again"
        ) from error


def map_array(path: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Map a ``.npy`` file into memory and check its shape and type."""
    try:
        array = np.asarray(mapped_array(path))
    except UserError as error:
        raise UserError(f"{error}; embed the images again") from error
    if array.shape != shape or array.dtype != dtype:
        raise UserError(
            f"{path} holds {array.dtype} of shape {array.shape}, but {DESCRIPTION_FILE} says "
            f"{np.dtype(dtype)} of shape {shape}; embed the images again"
        )
    return array


def read_text(path: Path) -> str:
    """Read a UTF-8 file without changing its line breaks."""
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); embed the images again") from error
