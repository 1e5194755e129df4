"""The forms that need no other library: a folder, `.npy` and `.safetensors`.

Ids and class names are lines of UTF-8 text; the classes come from the name in each row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.embeddings.store import (
    NO_CLASS,
    STORE_DESCRIPTION,
    Embeddings,
    open_embeddings,
    read_description,
    read_text,
    save_embeddings,
)
from unibct.errors import UserError
from unibct.files import (
    atomic_file,
    leftovers,
    mapped_array,
    partial_folder,
    remove_leftovers,
    require_absent,
)

_NPY, _SAFETENSORS = ".npy", ".safetensors"
_BLOCK = 65_536  # rows that are written at a time
_BESIDE = ("ids", "labels", "model")
_FINGERPRINT = "fingerprint"  # in the metadata


def encoded_lines(values: Sequence[str], what: str) -> bytes:
    """Return a line for each value; a value with a line break is refused."""
    for row, value in enumerate(values):
        if "\n" in value or "\r" in value:
            raise UserError(f"row {row}: the {what} {value!r} has a line break; rename it")
    return "".join(f"{value}\n" for value in values).encode()


def decoded_lines(data: bytes, where: str, rows: int) -> tuple[str, ...]:
    """Return the lines of a UTF-8 text, which must be as many as there are rows.

    The last line may have a break after it. ``where`` is what the text is, for messages.
    """
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text: {error}") from error
    lines = tuple(text.removesuffix("\n").split("\n")) if text else ()
    if len(lines) != rows:
        raise UserError(f"{where} has {len(lines)} lines for {rows} rows of vectors")
    return lines


def read_lines(path: Path, rows: int) -> tuple[str, ...]:
    """Return the lines of a file, one for each row."""
    return decoded_lines(path.read_bytes(), str(path), rows)


def classes_of(names: Sequence[str] | None, rows: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels and class names from the class name of each row.

    The classes are numbered in the order in which they first appear. Without names, no classes
    are known.
    """
    if names is None:
        return np.full(rows, NO_CLASS, dtype=np.int64), ()
    class_names = tuple(dict.fromkeys(names))
    number_of = {name: number for number, name in enumerate(class_names)}
    return np.array([number_of[name] for name in names], dtype=np.int64), class_names


def names_of(labels: NDArray[np.int64], class_names: Sequence[str]) -> list[str]:
    """Return the class name of each row."""
    return [class_names[int(label)] for label in labels]


class Folder:
    """`folder`: what ``unibct embed`` writes by default, see ``embeddings/store.py``."""

    @staticmethod
    def recognises(path: Path) -> bool:
        """Return whether a path is an embeddings folder."""
        return (path / STORE_DESCRIPTION).is_file()

    @staticmethod
    def read(path: Path) -> Embeddings:
        """Open an embeddings folder; one that was made for an evaluation protocol is refused."""
        protocol = read_description(path).protocol
        if protocol is not None:
            raise UserError(
                f"{path} was made for --protocol {protocol}: its rows are sums of two views, not "
                "normalised; embed the images without --protocol"
            )
        return open_embeddings(path)

    @staticmethod
    def require_writable(path: Path) -> None:
        """Refuse what exists already."""
        require_absent(path)

    @staticmethod
    def write(embeddings: Embeddings, path: Path) -> None:
        """Write a new embeddings folder."""
        remove_leftovers(path.resolve())
        save_embeddings(embeddings, path)


class Npy:
    """`npy`: vectors in ``NAME.npy``, and beside it a line for each row in ``NAME.ids.txt``.

    ``NAME.labels.txt`` has the classes, if they are known, and ``NAME.model.txt`` the model's
    fingerprint.
    """

    @staticmethod
    def recognises(path: Path) -> bool:
        """Return whether a path is a ``.npy`` file."""
        return path.suffix == _NPY and path.is_file()

    @staticmethod
    def read(path: Path) -> Embeddings:
        """Read the vectors (float32 is memory-mapped) and the files beside; unpickle nothing."""
        vectors = mapped_array(path)
        if vectors.ndim != 2 or vectors.shape[1] == 0:
            raise UserError(f"{path} must have the shape (rows, dim), not {vectors.shape}")
        if vectors.dtype.kind != "f":
            raise UserError(f"{path} has {vectors.dtype} values; embeddings are floating point")
        ids_path = _beside(path, "ids")
        if not ids_path.is_file():
            raise UserError(
                f"{path} has no ids: put {ids_path.name} beside it, with the id of each row on a "
                "line"
            )
        rows, labels_path, model_path = (
            len(vectors),
            _beside(path, "labels"),
            _beside(path, "model"),
        )
        names = read_lines(labels_path, rows) if labels_path.is_file() else None
        fingerprint = read_text(model_path).strip() if model_path.is_file() else ""
        vectors = vectors.astype(np.float32, copy=False)
        return Embeddings(
            vectors, read_lines(ids_path, rows), *classes_of(names, rows), fingerprint
        )

    @staticmethod
    def require_writable(path: Path) -> None:
        """Refuse another ending, and what exists already, also of the files beside.

        Those that a killed run has left are no obstacle: beside them is its hidden file or folder.
        """
        _require_new_npy(path)
        if not (partial_folder(path).exists() or leftovers(path)):
            for what in _BESIDE:
                require_absent(_beside(path, what))

    @staticmethod
    def write(embeddings: Embeddings, path: Path) -> None:
        """Write a hidden file with the vectors, then the files beside; its new name completes them.

        A file beside it that was left by a killed process is taken, if it is the same.
        """
        _require_new_npy(path)
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


def _require_new_npy(path: Path) -> None:
    if path.suffix != _NPY:
        raise UserError(f"{path}: the name must end in {_NPY}")
    require_absent(path)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.stem}.{what}.txt")


class Safetensors:
    """`safetensors`: the tensor ``vectors``, and ids and classes as UTF-8 lines in uint8 tensors.

    A file by others may have its only matrix under any name, and its ids in ``NAME.ids.txt``.
    """

    @staticmethod
    def recognises(path: Path) -> bool:
        """Return whether a path is a ``.safetensors`` file."""
        return path.suffix == _SAFETENSORS and path.is_file()

    @staticmethod
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
        classes = _tensor_lines(path, tensors, "labels", rows)
        ids = _tensor_lines(path, tensors, "ids", rows)
        if ids is None:
            raise UserError(
                f"{path} has no ids: it needs a uint8 tensor `ids` with the id of each row on a "
                f"line, or {path.stem}.ids.txt beside it"
            )
        return Embeddings(vectors, ids, *classes_of(classes, rows), metadata.get(_FINGERPRINT, ""))

    @staticmethod
    def require_writable(path: Path) -> None:
        """Refuse another ending, and what exists already."""
        if path.suffix != _SAFETENSORS:
            raise UserError(f"{path}: the name must end in {_SAFETENSORS}")
        require_absent(path)

    @staticmethod
    def write(embeddings: Embeddings, path: Path) -> None:
        """Write one file."""
        import safetensors.numpy

        Safetensors.require_writable(path)
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


def _tensor_lines(
    path: Path, tensors: dict[str, Any], what: str, rows: int
) -> tuple[str, ...] | None:
    if what in tensors:
        if str(tensors[what].dtype) != "torch.uint8":
            raise UserError(f"{path}: the tensor `{what}` must be uint8, lines of UTF-8 text")
        data = np.ascontiguousarray(tensors[what].numpy()).tobytes()
        return decoded_lines(data, f"{path}, tensor `{what}`", rows)
    beside = _beside(path, what)
    return read_lines(beside, rows) if beside.is_file() else None


def _bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, dtype=np.uint8)
