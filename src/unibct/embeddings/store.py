"""Embeddings with their ids and labels, in memory or in a folder, and the format of the folder.

A folder holds numbered shards, each with three files: ``vectors-000000.npy``,
``labels-000000.npy`` and ``ids-000000.txt``. ``classes.txt`` names the classes, and
``training_classes.txt`` has digests of the classes that the model was trained on.
``embeddings.json`` lists the shards, with the size and checksum of every file.

A folder may be larger than memory. Its files are written once and never changed; only
``embeddings.json``, which says which shards belong to it, is replaced, after everything else. So a
process that is killed while it adds shards leaves the folder as it was.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet, class_identities, read_id_list
from unibct.data.training_classes import UNKNOWN_CLASSES, UNKNOWN_SOURCE, TrainingClasses
from unibct.errors import UserError
from unibct.files import atomic_file, atomic_folder, mapped_array, read_json, write_json

STORE_DESCRIPTION = "embeddings.json"
CLASSES_FILE = "classes.txt"
TRAINING_CLASSES_FILE = "training_classes.txt"
DTYPES = ("float32", "float16")
SHARD_ROWS = 65_536
FORMAT = 2
NO_CLASS = -1  # the label of every row of embeddings whose classes are not known
VERIFIED_BYTES = 1 << 30  # opening compares the checksums of folders up to this size

T = TypeVar("T")


@dataclass(frozen=True)
class FileDigest:
    """A file's size in bytes and the SHA-256 of its content."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a store."""

    first: int  # the number of the first row in the store
    rows: int  # how many rows the shard has
    files: dict[str, FileDigest]  # the digest of each of its files, by file name


def require_shard_rows(rows: int) -> None:
    """Refuse files without rows: a negative number of rows would leave all of them out."""
    if rows < 1:
        raise UserError(f"shard_rows must be at least 1, not {rows}")


def shard_files(number: int) -> tuple[str, str, str]:
    """Return the names of a shard's files of vectors, labels and ids."""
    return f"vectors-{number:06}.npy", f"labels-{number:06}.npy", f"ids-{number:06}.txt"


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


def damaged(problem: str) -> UserError:
    """Return the error for a folder that cannot be used as it is."""
    return UserError(f"{problem}; embed the images again")


def check_file(path: Path, digest: FileDigest, *, verify: bool) -> None:
    """Raise an error if a file's size differs, or with ``verify`` its checksum."""
    try:
        size = path.stat().st_size
        if size != digest.bytes:
            raise damaged(f"{path} is damaged ({size} bytes instead of {digest.bytes})")
        if verify and file_digest(path) != digest:
            raise damaged(f"{path} is damaged (its checksum differs)")
    except OSError as error:
        raise damaged(f"{path} cannot be read ({error.strerror})") from error


def map_array(path: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Map a ``.npy`` file into memory and check its shape and type."""
    try:
        array = np.asarray(mapped_array(path))
    except UserError as error:
        raise damaged(str(error)) from error
    if array.shape != shape or array.dtype != dtype:
        raise damaged(
            f"{path} holds {array.dtype} of shape {array.shape}, but {STORE_DESCRIPTION} says "
            f"{np.dtype(dtype)} of shape {shape}"
        )
    return array


def read_text(path: Path) -> str:
    """Read a UTF-8 file without changing its line breaks."""
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(f"{path} cannot be read ({error})") from error


class Rows:
    """A store's vectors as a read-only (rows, dim) array of float32.

    Shards are memory-mapped when they are first used. Indexing takes slices and integer arrays,
    in any order and with repetitions, and returns arrays in memory; float16 is widened to float32.
    ``numpy.asarray`` returns all rows.
    """

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, folder: Path, shards: Sequence[Shard], dim: int, stored_dtype: str) -> None:
        self.stored_dtype = np.dtype(stored_dtype)  # on disk: float32 or float16
        self._folder = folder
        self._starts = np.array([0, *accumulate(shard.rows for shard in shards)], dtype=np.int64)
        self._mapped_shards: list[NDArray[Any] | None] = [None] * len(shards)
        self.shape = (int(self._starts[-1]), dim)  # (rows, dim)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        if not isinstance(key, slice) and np.ndim(key) == 0:
            return self[[int(key)]][0]
        return self.read_stored(key).astype(np.float32, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if len(self._mapped_shards) == 1 and self.stored_dtype == self.dtype and not copy:
            return self._shard(0).astype(dtype or self.dtype, copy=False)
        return self[:].astype(dtype or self.dtype, copy=False)

    def read_stored(self, key: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read some rows in the type they have on disk.

        ``key`` is a slice, a sequence of row numbers, or a mask with one bool per row; ``out`` a
        (rows, dim) array of ``stored_dtype`` to fill, by default a new one.
        """
        if isinstance(key, slice) and key.indices(len(self))[2] == 1:
            start, stop, _ = key.indices(len(self))
            return self._read_range(start, max(start, stop), out)
        rows = np.arange(len(self))[key] if isinstance(key, slice) else self._row_numbers(key)
        if len(rows) and bool((np.diff(rows) == 1).all()):
            return self._read_range(int(rows[0]), int(rows[-1]) + 1, out)
        return self._gather(rows, out)

    def _row_numbers(self, key: Any) -> NDArray[np.int64]:
        """Return the row numbers, from 0 up, that an index of any kind selects."""
        rows = np.asarray(key)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {rows.shape} for {len(self)} rows")
            return np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
            raise IndexError(f"rows are taken by a slice or a list of integers, not {key!r}")
        rows = rows.astype(np.int64, copy=False)
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"row {rows[np.abs(rows).argmax()]} of {len(self)}")
        return np.where(rows < 0, rows + len(self), rows) if rows.size and rows.min() < 0 else rows

    def _read_range(self, start: int, stop: int, out: NDArray[Any] | None) -> NDArray[Any]:
        """Read consecutive rows."""
        out = self._output(stop - start, out)
        for number, (first, last) in enumerate(pairwise(self._starts.tolist())):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                out[begin - start : end - start] = self._shard(number)[begin - first : end - first]
        return out

    def _gather(self, rows: NDArray[np.int64], out: NDArray[Any] | None) -> NDArray[Any]:
        """Read rows in any order; from each shard in ascending order, which disks do fastest."""
        out = self._output(len(rows), out)
        ascending = bool((np.diff(rows) >= 0).all())
        order = None if ascending else np.argsort(rows, kind="stable")
        rows = rows if order is None else rows[order]
        cuts = np.searchsorted(rows, self._starts).tolist()
        for number, (begin, end) in enumerate(pairwise(cuts)):
            if begin == end:
                continue
            shard, shard_rows = self._shard(number), rows[begin:end] - self._starts[number]
            if order is None:  # with "clip" NumPy needs no second buffer; nothing is out of bounds
                np.take(shard, shard_rows, axis=0, out=out[begin:end], mode="clip")
            else:
                out[order[begin:end]] = np.take(shard, shard_rows, axis=0)
        return out

    def _output(self, rows: int, out: NDArray[Any] | None) -> NDArray[Any]:
        if out is None:
            return np.empty((rows, self.shape[1]), dtype=self.stored_dtype)
        assert out.shape == (rows, self.shape[1])
        assert out.dtype == self.stored_dtype
        return out

    def _shard(self, number: int) -> NDArray[Any]:
        """Return a shard's vectors, mapped into memory on first use."""
        shard = self._mapped_shards[number]
        if shard is None:
            path = self._folder / shard_files(number)[0]
            rows = int(self._starts[number + 1] - self._starts[number])
            shard = map_array(path, (rows, self.shape[1]), self.stored_dtype)
            self._mapped_shards[number] = shard
        return shard


Vectors: TypeAlias = NDArray[np.float32] | Rows


class Embeddings:
    """One model's vectors of an image set, with the images' ids and labels."""

    def __init__(
        self,
        vectors: Vectors,
        ids: tuple[str, ...] | Callable[[], tuple[str, ...]],
        labels: NDArray[np.int64] | Callable[[], NDArray[np.int64]],
        class_names: tuple[str, ...] | Callable[[], tuple[str, ...]],
        fingerprint: str,
        *,
        class_source: str | None = UNKNOWN_SOURCE,
        training_classes: TrainingClasses | Callable[[], TrainingClasses] = UNKNOWN_CLASSES,
    ) -> None:
        """Take the values, or functions that read them on first use; check what is given.

        Args:
            vectors: (images, dim) float32: an array, or the ``Rows`` of a folder. They are
                L2-normalised, unless the folder was made for an evaluation protocol.
            ids: one per image.
            labels: (images,) int64, indices into ``class_names``; all ``NO_CLASS`` if there are
                none.
            class_names: one per class; none if the classes are not known.
            fingerprint: the model's fingerprint.
            class_source: what numbered the classes, see ``ImageSet``; by default unknown.
            training_classes: what the model was trained on; by default unknown.
        """
        self.vectors = vectors
        self.fingerprint = fingerprint
        self.class_source = class_source
        self._ids, self._labels, self._class_names = ids, labels, class_names
        self._training_classes = training_classes
        if vectors.ndim != 2 or vectors.dtype != np.float32:
            raise UserError(
                f"vectors must be float32 of shape (images, dim), not {vectors.dtype} of "
                f"shape {vectors.shape}"
            )
        if not callable(ids):
            _ = self.ids
        if not callable(labels):
            _ = self.labels

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """One id per image."""
        ids = tuple(_value_of(self._ids))
        if len(ids) != len(self):
            raise UserError(f"{len(self)} vectors and {len(ids)} ids do not match")
        return ids

    @cached_property
    def position(self) -> dict[str, int]:
        """The row of each id."""
        return {image_id: row for row, image_id in enumerate(self.ids)}

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(images,) int64, indices into ``class_names``; all −1 if no classes are known."""
        labels = _value_of(self._labels)
        if labels.shape != (len(self),):
            raise UserError(f"{len(self)} vectors and {len(labels)} labels do not match")
        if not self.class_names and bool((labels == NO_CLASS).all()):
            return labels
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.class_names):
            raise UserError(f"labels go beyond the {len(self.class_names)} class names")
        return labels

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """One name per class; none if the classes are not known."""
        return _value_of(self._class_names)

    @cached_property
    def training_classes(self) -> TrainingClasses:
        """The classes that the model was trained on."""
        return _value_of(self._training_classes)

    def __len__(self) -> int:
        return len(self.vectors)

    def changed(
        self,
        *,
        vectors: Vectors | None = None,
        fingerprint: str,
        training_classes: TrainingClasses | None = None,
    ) -> "Embeddings":
        """Return the same rows as another model's, perhaps with other vectors and classes."""
        return Embeddings(
            self.vectors if vectors is None else vectors,
            self.ids,
            self.labels,
            self.class_names,
            fingerprint,
            class_source=self.class_source,
            training_classes=training_classes or self._training_classes,
        )

    def listed(self, list_file: Path) -> "Embeddings":
        """Return the rows whose ids are in a file, which has one id per line."""
        lines = read_id_list(list_file)
        for row_id, number in lines.items():
            if row_id not in self.position:
                raise UserError(f"{list_file}, line {number}: {row_id!r} has no embedding")
        rows = sorted(self.position[row_id] for row_id in lines)
        return Embeddings(
            np.asarray(self.vectors[rows]),
            tuple(self.ids[row] for row in rows),
            self.labels[rows],
            self.class_names,
            self.fingerprint,
            class_source=self.class_source,
            training_classes=self._training_classes,
        )

    def of_images(self, images: ImageSet) -> "Embeddings":
        """Return the embeddings of ``images``, in the order of ``images``."""
        return Embeddings(
            self.rows_of(images),
            images.ids,
            images.labels,
            images.class_names,
            self.fingerprint,
            class_source=images.class_source,
            training_classes=self._training_classes,
        )

    def rows_of(self, images: ImageSet) -> NDArray[np.float32]:
        """Return the vectors of ``images``, in the order of ``images``."""
        known = images.ids if self.ids == images.ids else self.position
        missing = [image_id for image_id in images.ids if image_id not in known]
        if missing:
            raise UserError(
                f"{len(missing)} images of {images.name} have no embedding, first {missing[0]!r}; "
                "make them with `unibct embed`"
            )
        return self.vectors_of(images.ids)

    def vectors_of(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return (ids, dim) the rows with these ids, which must be there."""
        if tuple(ids) == self.ids:
            return np.asarray(self.vectors)
        return self.vectors[[self.position[image_id] for image_id in ids]]


def open_embeddings(folder: str | Path, *, verify: bool | None = None) -> Embeddings:
    """Open an embeddings folder in milliseconds; only its description is read at once.

    Args:
        folder: what ``save_embeddings`` or ``unibct embed`` wrote.
        verify: read all files once and compare their checksums. By default this is done for a
            folder of up to 1 GiB; for a larger one only the counts and the file sizes are checked.
    """
    folder = Path(folder)
    description = read_description(folder)
    shards = description.shards
    digests = {name: digest for shard in shards for name, digest in shard.files.items()}
    trained_on = description.trained_on
    if trained_on is not None:
        digests[TRAINING_CLASSES_FILE] = trained_on.file
    total_bytes = sum(digest.bytes for digest in digests.values())
    verify = total_bytes <= VERIFIED_BYTES if verify is None else verify
    for name, digest in digests.items():
        check_file(folder / name, digest, verify=verify)
    if verify:
        _read_class_names(folder / description.classes_file, description.classes)
    return Embeddings(
        Rows(folder, shards, description.dim, description.dtype),
        lambda: _read_ids(folder, shards),
        lambda: _read_labels(folder, shards),
        lambda: _read_class_names(folder / description.classes_file, description.classes),
        description.fingerprint,
        class_source=description.class_source,
        training_classes=lambda: _read_training_classes(folder, trained_on),
    )


@dataclass(frozen=True)
class TrainedOn:
    """What ``embeddings.json`` says about the model's training classes."""

    file: FileDigest  # of ``training_classes.txt``
    others: TrainingClasses  # everything about them but their digests


@dataclass(frozen=True)
class Description:
    """The content of ``embeddings.json``."""

    dim: int  # numbers in a vector
    dtype: str  # the vectors' type on disk
    fingerprint: str  # the model's
    classes: FileDigest  # of the part of ``classes_file`` that belongs to these shards
    shards: list[Shard]  # in the order of their rows
    source: str | None  # the key of model, pixels and settings it was made from, if known
    # The evaluation protocol whose rules the vectors follow; they are not normalised then. None:
    # each vector is an image's normalised embedding.
    protocol: str | None = None
    class_source: str | None = UNKNOWN_SOURCE  # what numbered the classes, see ``ImageSet``
    trained_on: TrainedOn | None = None  # None if unknown, as in folders of earlier versions
    classes_file: str = CLASSES_FILE  # the name of the file with the names of the classes


def read_description(folder: Path) -> Description:
    """Read and check ``embeddings.json``; an error says what is wrong with the folder."""
    path = folder / STORE_DESCRIPTION
    if not path.is_file():
        raise UserError(f"{folder} is not an embeddings folder: no {STORE_DESCRIPTION} in it")
    content: dict[str, Any] = read_json(path)
    try:
        if content["format"] != FORMAT:
            raise damaged(
                f"{folder} has format {content['format']}, and this unibct reads {FORMAT}"
            )
        shards = [shard_from_json(entry) for entry in content["shards"]]
        firsts = [0, *accumulate(shard.rows for shard in shards)]
        if [shard.first for shard in shards] != firsts[:-1] or firsts[-1] != content["images"]:
            raise damaged(
                f"{path} says {content['images']} images, but its shards have {firsts[-1]}"
            )
        if content["dtype"] not in DTYPES:
            raise UserError(f"{path}: unknown dtype {content['dtype']!r}")
        return Description(
            int(content["dim"]),
            content["dtype"],
            content["model"],
            FileDigest(**content["classes"]),
            shards,
            content["source"],
            content.get("protocol"),
            content.get("class_source", UNKNOWN_SOURCE),
            _trained_on(content.get("training_classes")),
            Path(content.get("classes_file", CLASSES_FILE)).name,
        )
    except KeyError as error:
        raise damaged(f"{path} lacks the entry {error}") from error
    except (TypeError, AttributeError) as error:
        raise damaged(f"{path} cannot be understood ({error})") from error


def _trained_on(content: Any) -> TrainedOn | None:
    if content is None:
        return None
    file = FileDigest(content["bytes"], content["sha256"])
    others = TrainingClasses.of_json(content | {"digests": ()})
    # Earlier versions, which kept no choices, took trained first weights for random ones.
    return TrainedOn(file, others if "choices" in content else replace(others, complete=False))


def _value_of(value: T | Callable[[], T]) -> T:
    return cast("Callable[[], T]", value)() if callable(value) else value


def _read_labels(folder: Path, shards: Sequence[Shard]) -> NDArray[np.int64]:
    labels = [
        map_array(folder / shard_files(number)[1], (shard.rows,), np.int64)
        for number, shard in enumerate(shards)
    ]
    if len(labels) == 1:
        return labels[0]
    return np.concatenate(labels) if labels else np.empty(0, dtype=np.int64)


def _read_ids(folder: Path, shards: Sequence[Shard]) -> tuple[str, ...]:
    ids: list[str] = []
    for number, shard in enumerate(shards):
        path = folder / shard_files(number)[2]
        shard_ids = read_text(path).split("\n")[:-1]
        if len(shard_ids) != shard.rows:
            raise damaged(f"{path} has {len(shard_ids)} ids for {shard.rows} rows")
        ids += shard_ids
    return tuple(ids)


def _read_training_classes(folder: Path, trained_on: TrainedOn | None) -> TrainingClasses:
    if trained_on is None:
        return UNKNOWN_CLASSES
    digests = frozenset(read_text(folder / TRAINING_CLASSES_FILE).split())
    return replace(trained_on.others, digests=digests)


def _read_class_names(path: Path, digest: FileDigest) -> tuple[str, ...]:
    """Read the class names that a description counts; the file may have more after them."""
    data = read_text(path).encode()[: digest.bytes]
    if hashlib.sha256(data).hexdigest() != digest.sha256:
        raise damaged(f"{path} is damaged (its checksum differs)")
    return tuple(data.decode().split("\n")[:-1])


# Writing: a shard's files belong to the folder once ``embeddings.json`` names them.


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
            class_names=embeddings.class_names,
            class_source=embeddings.class_source,
            training_classes=embeddings.training_classes,
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
    is_known = stored.training_classes != UNKNOWN_CLASSES  # the same model has made both
    write_description(
        folder,
        shards,
        dim=description.dim,
        dtype=description.dtype,
        fingerprint=description.fingerprint,
        class_names=class_names,
        class_source=class_source,
        training_classes=(stored if is_known else embeddings).training_classes,
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


def write_description(
    folder: Path,
    shards: Sequence[Shard],
    *,
    dim: int,
    dtype: str,
    fingerprint: str,
    class_names: Sequence[str],
    class_source: str | None,
    training_classes: TrainingClasses,
    source: str | None = None,
    protocol: str | None = None,
    classes_file: str = CLASSES_FILE,
) -> None:
    """Complete a folder: write the files of classes, then ``embeddings.json``.

    The arguments are those of ``Description``, with all shards of the folder. In a file, classes
    are only ever added at the end, so an older description fits it too.
    """
    text = _encoded_lines(class_names, "class")
    _write_bytes(folder / classes_file, text)
    write_json(
        folder / STORE_DESCRIPTION,
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
        | ({} if class_source == UNKNOWN_SOURCE else {"class_source": class_source})
        | _written_training_classes(folder, training_classes),
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
    """Write the three files of one shard, whose first row has the number ``first`` in the store.

    The shapes are (rows, dim) for vectors and (rows,) for labels and ids.
    """
    require_dtype(dtype)
    with np.errstate(over="ignore"):
        stored = vectors.astype(dtype, copy=False)
    finite = np.isfinite(stored).all(axis=1)
    if not finite.all():
        raise UserError(f"the embedding of {ids[int(finite.argmin())]} is not finite as {dtype}")
    names = shard_files(number)
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
