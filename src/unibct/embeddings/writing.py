"""Writing embeddings folders: one shard, a whole folder, more rows for a folder.

A shard's files belong to the folder once ``embeddings.json`` names them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet, class_identities
from unibct.data.training_classes import UNKNOWN_CLASSES, UNKNOWN_SOURCE, TrainingClasses
from unibct.embeddings.folder import (
    FORMAT,
    Description,
    Embeddings,
    open_embeddings,
    read_description,
)
from unibct.embeddings.layout import (
    CLASSES_FILE,
    DESCRIPTION_FILE,
    DTYPES,
    SHARD_ROWS,
    TRAINING_CLASSES_FILE,
    Shard,
    file_digest,
    ids_file,
    labels_file,
    require_shard_rows,
    vectors_file,
)
from unibct.errors import UserError
from unibct.files import atomic_file, atomic_folder, write_json

if TYPE_CHECKING:
    from unibct.models.embedder import Embedder


def save_embeddings(
    embeddings: Embeddings,
    folder: str | Path,
    *,
    dtype: str = "float32",
    shard_rows: int = SHARD_ROWS,
    source: str | None = None,
    protocol: str | None = None,
) -> None:
    """Write a new embeddings folder, either all of it or nothing.

    Args:
        embeddings: what to write.
        folder: a new folder.
        dtype: ``float32``, or ``float16`` for half the size and three decimal digits.
        shard_rows: rows in a file.
        source: the key of what the embeddings were made from, if known.
        protocol: the evaluation protocol whose rules the vectors follow, if they are not
            normalised embeddings of images.
    """
    with atomic_folder(Path(folder)) as temporary:
        shards = list(_write_shards(temporary, embeddings, embeddings.labels, dtype, shard_rows))
        write_description(
            temporary,
            shards,
            dim=embeddings.vectors.shape[1],
            dtype=dtype,
            fingerprint=embeddings.fingerprint,
            classes=StoredClasses(
                embeddings.class_names, embeddings.class_source, embeddings.training_classes
            ),
            source=source,
            protocol=protocol,
        )


def append_embeddings(
    folder: str | Path, embeddings: Embeddings, *, shard_rows: int = SHARD_ROWS
) -> None:
    """Add more images of the same model to an embeddings folder.

    Either all images are added or none: a process that is killed leaves the folder as it was.
    New classes are numbered after the folder's own classes. Classes of the same name are the same,
    unless the names are mere numbers of different files: those get their identities as names.
    Either all images of the folder have classes or none.

    Args:
        folder: what ``save_embeddings`` or ``unibct embed`` wrote.
        embeddings: images whose ids are not in the folder yet.
        shard_rows: rows in a file.
    """
    folder = Path(folder)
    read_description(folder)
    try:
        with FileLock(folder / ".lock", blocking=False):
            _append(folder, embeddings, shard_rows)
    except Timeout:
        raise UserError(f"another process is adding to {folder}; wait until it is done") from None


def _append(folder: Path, embeddings: Embeddings, shard_rows: int) -> None:
    description = read_description(folder)
    if description.protocol is not None:
        raise UserError(
            f"{folder} was made for --protocol {description.protocol}, whose images are fixed; "
            "save into another folder"
        )
    stored = open_embeddings(folder, verify=False)
    _require_same_model(folder, description, embeddings)
    _require_new_ids(folder, stored, embeddings)
    if bool(stored.class_names) != bool(embeddings.class_names):
        has, lacks = ("has", "lack") if stored.class_names else ("has no", "have")
        raise UserError(
            f"{folder} {has} classes, and the embeddings to add {lacks} them; save into another "
            "folder"
        )
    stored_names, added_names, class_source = _comparable_names(stored, embeddings)
    class_names = list(dict.fromkeys((*stored_names, *added_names)))
    labels = embeddings.labels
    if class_names:
        number_of = {name: number for number, name in enumerate(class_names)}
        class_numbers = np.array([number_of[name] for name in added_names], dtype=np.int64)
        labels = class_numbers[labels]
    shards = [*description.shards]
    # A file whose names change is not touched: until the end the folder's description needs it.
    renamed = list(stored_names) != list(stored.class_names)
    classes_file = f"classes-{len(shards)}.txt" if renamed else description.classes_file
    shards += _write_shards(folder, embeddings, labels, description.dtype, shard_rows, shards)
    write_description(
        folder,
        shards,
        dim=description.dim,
        dtype=description.dtype,
        fingerprint=description.fingerprint,
        classes=StoredClasses(
            class_names,
            class_source,
            embeddings.training_classes
            if stored.training_classes == UNKNOWN_CLASSES
            else stored.training_classes,  # the same model has made both
        ),
        classes_file=classes_file,
    )


def _comparable_names(
    stored: Embeddings, added: Embeddings
) -> tuple[Sequence[str], Sequence[str], str | None]:
    """Return names of both sets' classes that are equal for the same class, and their source."""
    sources = {stored.class_source, added.class_source}
    if len(sources) == 1:
        return stored.class_names, added.class_names, stored.class_source
    if UNKNOWN_SOURCE in sources:
        return stored.class_names, added.class_names, UNKNOWN_SOURCE
    stored_names, added_names = (
        class_identities(part.class_names, part.class_source) for part in (stored, added)
    )
    return stored_names, added_names, None


def _require_same_model(folder: Path, description: Description, embeddings: Embeddings) -> None:
    for name, stored, added in (
        ("model", description.fingerprint, embeddings.fingerprint),
        ("dimension", description.dim, embeddings.vectors.shape[1]),
    ):
        if stored != added:
            raise UserError(
                f"{folder} was made with {name} {stored}, not {added}; save into another folder"
            )


def _require_new_ids(folder: Path, stored: Embeddings, embeddings: Embeddings) -> None:
    known_ids = set(stored.ids)
    for image_id in embeddings.ids:
        if image_id in known_ids:
            raise UserError(f"{folder} has an embedding of {image_id!r} already; leave it out")
        known_ids.add(image_id)


@dataclass(frozen=True)
class StoredClasses:
    """What a folder keeps about classes.

    Attributes:
        names: one per class of the images.
        source: what numbered them, see ``ImageSet``.
        training: the classes that the model was trained on.
    """

    names: Sequence[str]
    source: str | None
    training: TrainingClasses


def stored_classes(images: ImageSet, model: "Embedder") -> StoredClasses:
    """Return what a folder of a model's embeddings of some images keeps about classes."""
    return StoredClasses(images.class_names, images.class_source, model.training_classes)


def write_description(
    folder: Path,
    shards: Sequence[Shard],
    *,
    dim: int,
    dtype: str,
    fingerprint: str,
    classes: StoredClasses,
    source: str | None = None,
    protocol: str | None = None,
    classes_file: str = CLASSES_FILE,
) -> None:
    """Complete a folder: write the files of classes, then ``embeddings.json``.

    In a file, classes are only ever added at the end, so an older description fits it too.

    Args:
        folder: where the shards were written.
        shards: all shards of the folder, in the order of their rows.
        dim: numbers in a vector.
        dtype: the vectors' type on disk.
        fingerprint: the model's fingerprint.
        classes: of the images, and of the model's training.
        source: the key of the model, pixels and settings the folder was made from, if known.
        protocol: see ``Description``.
        classes_file: the name of the file with the names of classes.
    """
    text = _encoded_lines(classes.names, "class")
    _write_bytes(folder / classes_file, text)
    write_json(
        folder / DESCRIPTION_FILE,
        {
            "format": FORMAT,
            "images": sum(shard.rows for shard in shards),
            "dim": dim,
            "dtype": dtype,
            "normalised": protocol is None,
            "model": fingerprint,
            "source": source,
            "classes": {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()},
            "shards": [asdict(shard) for shard in shards],
        }
        | ({} if protocol is None else {"protocol": protocol})
        | ({} if classes_file == CLASSES_FILE else {"classes_file": classes_file})
        | ({} if classes.source == UNKNOWN_SOURCE else {"class_source": classes.source})
        | _written_training_classes(folder, classes.training),
    )


def _written_training_classes(folder: Path, training: TrainingClasses) -> dict[str, Any]:
    """Write the digests, if any are known, and return what ``embeddings.json`` says about them."""
    if training == UNKNOWN_CLASSES:
        return {}
    path = folder / TRAINING_CLASSES_FILE
    _write_bytes(path, _encoded_lines(sorted(training.digests), "digest"))
    others = replace(training, digests=frozenset[str]()).as_json()
    del others["digests"]
    return {"training_classes": asdict(file_digest(path)) | others}


def require_dtype(dtype: str) -> None:
    """Refuse a type that vectors cannot have on disk."""
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")


def write_shard(
    folder: Path,
    number: int,
    first: int,
    vectors: NDArray[Any],
    labels: NDArray[np.int64],
    ids: Sequence[str],
    dtype: str = "float32",
) -> Shard:
    """Write the three files of one shard.

    Args:
        folder: the store's folder.
        number: the shard's number.
        first: the number of its first row in the store.
        vectors: (rows, dim).
        labels: (rows,).
        ids: one per row.
        dtype: ``float32`` or ``float16``.
    """
    require_dtype(dtype)
    with np.errstate(over="ignore"):
        stored = vectors.astype(dtype, copy=False)
    finite = np.isfinite(stored).all(axis=1)
    if not finite.all():
        raise UserError(f"the embedding of {ids[int(finite.argmin())]} is not finite as {dtype}")
    names = (vectors_file(number), labels_file(number), ids_file(number))
    for name, array in ((names[0], stored), (names[1], labels.astype(np.int64, copy=False))):
        write_array(folder / name, array)
    _write_bytes(folder / names[2], _encoded_lines(ids, "image id"))
    return Shard(first, len(stored), {name: file_digest(folder / name) for name in names})


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def _write_shards(
    folder: Path,
    embeddings: Embeddings,
    labels: NDArray[np.int64],
    dtype: str,
    shard_rows: int,
    existing_shards: Sequence[Shard] = (),
) -> Iterator[Shard]:
    """Write embeddings as shards numbered after the existing ones."""
    require_shard_rows(shard_rows)
    first_row, first_number = sum(shard.rows for shard in existing_shards), len(existing_shards)
    for number, begin in enumerate(range(0, len(embeddings), shard_rows), start=first_number):
        part = slice(begin, begin + shard_rows)
        yield write_shard(
            folder,
            number,
            first_row + begin,
            embeddings.vectors[part],
            labels[part],
            embeddings.ids[part],
            dtype,
        )


def _encoded_lines(values: Sequence[str], what: str) -> bytes:
    text = "".join(f"{value}\n" for value in values)
    if text.count("\n") != len(values):
        broken = next(value for value in values if "\n" in value)
        raise UserError(f"the {what} {broken!r} has a line break; rename it")
    return text.encode()


def _write_bytes(path: Path, data: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
