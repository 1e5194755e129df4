"""Embeddings with their ids and labels, in memory or in a folder that may exceed it.

A folder is a list of shards: ``vectors-000000.npy``, ``labels-000000.npy``, ``ids-000000.txt``,
and so on, each file written whole and never changed; ``classes.txt``; and ``embeddings.json``,
which names the shards that count, with the size and checksum of every file. It is replaced last,
at once: whoever is killed while adding shards leaves the folder as it was.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.files import atomic_file, atomic_folder, mapped_array, read_json, write_json

FORMAT = 2
DESCRIPTION_FILE = "embeddings.json"
CLASSES_FILE = "classes.txt"
DTYPES = ("float32", "float16")
SHARD_ROWS = 65_536
VERIFIED = 1 << 30  # bytes up to which opening compares the checksums unless told otherwise

T = TypeVar("T")


@dataclass(frozen=True)
class FileNote:
    """What a file must be: its size in bytes and the SHA-256 of its content."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """``rows`` consecutive rows of a store from row ``first`` on, and the files they are in."""

    first: int
    rows: int
    files: dict[str, FileNote]


class Rows:
    """A store's vectors as a read-only array (rows, dim) of float32, memory-mapped when used.

    Takes slices and integer arrays, in any order and with repetitions, and gives arrays in memory;
    float16 shards are widened. ``numpy.asarray`` gives all of it.
    """

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, folder: Path, shards: Sequence[Shard], dim: int, stored: str) -> None:
        self.stored_dtype = np.dtype(stored)
        self._folder = folder
        self._starts = np.array([0, *accumulate(shard.rows for shard in shards)], dtype=np.int64)
        self._mapped: list[NDArray[Any] | None] = [None] * len(shards)
        self.shape = (int(self._starts[-1]), dim)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        if not isinstance(key, slice) and np.ndim(key) == 0:
            return self[[int(key)]][0]
        return self.stored(key).astype(np.float32, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if len(self._mapped) == 1 and self.stored_dtype == self.dtype and not copy:
            return self._shard(0).astype(dtype or self.dtype, copy=False)
        return self[:].astype(dtype or self.dtype, copy=False)

    def stored(self, key: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Some rows as they are on disk, not widened.

        Args:
            key: a slice, a sequence of row numbers or of one bool for each row.
            out: where to put them, (rows, dim) of ``stored_dtype``; a new array without it.
        """
        if isinstance(key, slice) and key.indices(len(self))[2] == 1:
            start, stop, _ = key.indices(len(self))
            return self._read(start, max(start, stop), out)
        rows = np.arange(len(self))[key] if isinstance(key, slice) else self._row_numbers(key)
        if len(rows) and bool((np.diff(rows) == 1).all()):
            return self._read(int(rows[0]), int(rows[-1]) + 1, out)
        return self._gather(rows, out)

    def _row_numbers(self, key: Any) -> NDArray[np.int64]:
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

    def _read(self, start: int, stop: int, out: NDArray[Any] | None) -> NDArray[Any]:
        out = self._space(stop - start, out)
        for number, (first, last) in enumerate(pairwise(self._starts.tolist())):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                out[begin - start : end - start] = self._shard(number)[begin - first : end - first]
        return out

    def _gather(self, rows: NDArray[np.int64], out: NDArray[Any] | None) -> NDArray[Any]:
        """Shard by shard in ascending order, as disks like it."""
        out = self._space(len(rows), out)
        ascending = bool((np.diff(rows) >= 0).all())
        order = None if ascending else np.argsort(rows, kind="stable")
        rows = rows if order is None else rows[order]
        cuts = np.searchsorted(rows, self._starts).tolist()
        for number, (begin, end) in enumerate(pairwise(cuts)):
            if begin == end:
                continue
            shard, wanted = self._shard(number), rows[begin:end] - self._starts[number]
            if order is None:  # with "clip" NumPy needs no second buffer; nothing is out of bounds
                np.take(shard, wanted, axis=0, out=out[begin:end], mode="clip")
            else:
                out[order[begin:end]] = np.take(shard, wanted, axis=0)
        return out

    def _space(self, rows: int, out: NDArray[Any] | None) -> NDArray[Any]:
        if out is None:
            return np.empty((rows, self.shape[1]), dtype=self.stored_dtype)
        assert out.shape == (rows, self.shape[1])
        assert out.dtype == self.stored_dtype
        return out

    def _shard(self, number: int) -> NDArray[Any]:
        found = self._mapped[number]
        if found is None:
            path = self._folder / vectors_file(number)
            rows = int(self._starts[number + 1] - self._starts[number])
            found = _mapped(path, (rows, self.shape[1]), self.stored_dtype)
            self._mapped[number] = found
        return found


Vectors: TypeAlias = NDArray[np.float32] | Rows


class Embeddings:
    """The vectors of an image set by one model; checks itself.

    Attributes:
        vectors: (images, dim) float32, L2-normalised: an array, or the ``Rows`` of a folder.
        fingerprint: of the model.
    """

    def __init__(
        self,
        vectors: Vectors,
        ids: tuple[str, ...] | Callable[[], tuple[str, ...]],
        labels: NDArray[np.int64] | Callable[[], NDArray[np.int64]],
        class_names: tuple[str, ...] | Callable[[], tuple[str, ...]],
        fingerprint: str,
    ) -> None:
        """Take the parts, or functions that read them when they are first used.

        Args:
            vectors: (images, dim) float32.
            ids: one per image.
            labels: (images,) int64, indices into ``class_names``.
            class_names: one per class.
            fingerprint: of the model.
        """
        self.vectors = vectors
        self.fingerprint = fingerprint
        self._ids, self._labels, self._class_names = ids, labels, class_names
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
        """One per image."""
        ids = _read_now(self._ids)
        if len(ids) != len(self):
            raise UserError(f"{len(self)} vectors and {len(ids)} ids do not match")
        return ids

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(images,) int64, indices into ``class_names``."""
        labels = _read_now(self._labels)
        if labels.shape != (len(self),):
            raise UserError(f"{len(self)} vectors and {len(labels)} labels do not match")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.class_names):
            raise UserError(f"labels go beyond the {len(self.class_names)} class names")
        return labels

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """One per class."""
        return _read_now(self._class_names)

    def __len__(self) -> int:
        return len(self.vectors)

    def rows_of(self, images: ImageSet) -> NDArray[np.float32]:
        """The vectors of ``images``, in their order."""
        if self.ids == images.ids:
            return np.asarray(self.vectors)
        position = {image_id: row for row, image_id in enumerate(self.ids)}
        missing = [image_id for image_id in images.ids if image_id not in position]
        if missing:
            raise UserError(
                f"{len(missing)} images of {images.name} have no embedding, first {missing[0]!r}; "
                "make them with `unibct embed`"
            )
        return self.vectors[[position[image_id] for image_id in images.ids]]


def save_embeddings(
    embeddings: Embeddings,
    folder: str | Path,
    *,
    dtype: str = "float32",
    shard_rows: int = SHARD_ROWS,
) -> None:
    """Write an embeddings folder, whole or not at all.

    Args:
        embeddings: what to write.
        folder: a new folder.
        dtype: ``float32``, or ``float16`` for half the size and three decimal digits.
        shard_rows: rows in a file.
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
        )


def append_embeddings(
    folder: str | Path, embeddings: Embeddings, *, shard_rows: int = SHARD_ROWS
) -> None:
    """Add more images of the same model to an embeddings folder.

    All of them or none: a process that is killed leaves the folder as it was. Classes that the
    folder does not know come behind those that it knows.

    Args:
        folder: what ``save_embeddings`` or ``unibct embed`` wrote.
        embeddings: with ids that the folder does not have.
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
    described = read_description(folder)
    kept = open_embeddings(folder, verify=False)
    for name, old, new in (
        ("model", kept.fingerprint, embeddings.fingerprint),
        ("dimension", described.dim, embeddings.vectors.shape[1]),
    ):
        if old != new:
            raise UserError(f"{folder} is of {name} {old}, not {new}; save into another folder")
    known = set(kept.ids)
    for image_id in embeddings.ids:
        if image_id in known:
            raise UserError(f"{folder} has an embedding of {image_id!r} already; leave it out")
        known.add(image_id)
    names = list(dict.fromkeys((*kept.class_names, *embeddings.class_names)))
    number = {name: i for i, name in enumerate(names)}
    own = np.array([number[name] for name in embeddings.class_names], dtype=np.int64)
    shards = [*described.shards]
    shards += _write_shards(
        folder, embeddings, own[embeddings.labels], described.dtype, shard_rows, shards
    )
    write_description(
        folder,
        shards,
        dim=described.dim,
        dtype=described.dtype,
        fingerprint=described.model,
        class_names=names,
    )


def open_embeddings(folder: str | Path, *, verify: bool | None = None) -> Embeddings:
    """Open an embeddings folder in milliseconds; all but its description is read when it is used.

    Args:
        folder: what ``save_embeddings`` or ``unibct embed`` wrote.
        verify: read all files once and compare their checksums. By default a folder of up to
            1 GiB is verified; of a larger one only the counts and the files' sizes are checked.
    """
    folder = Path(folder)
    described = read_description(folder)
    notes = {name: note for shard in described.shards for name, note in shard.files.items()}
    size = sum(note.bytes for note in notes.values())
    verify = size <= VERIFIED if verify is None else verify
    for name, note in notes.items():
        _check_file(folder / name, note, verify=verify)
    if verify:
        _classes(folder, described.classes)
    shards = described.shards
    return Embeddings(
        Rows(folder, shards, described.dim, described.dtype),
        lambda: tuple(line for i in range(len(shards)) for line in _ids(folder, i, shards[i])),
        lambda: _all_labels(folder, shards),
        lambda: _classes(folder, described.classes),
        described.model,
    )


@dataclass(frozen=True)
class Description:
    """What ``embeddings.json`` says; ``source`` tells of which pixels, if that is known."""

    dim: int
    dtype: str
    model: str
    classes: FileNote
    shards: list[Shard]
    source: str | None


def read_description(folder: Path) -> Description:
    """Read and check ``embeddings.json``; an error says what is wrong with the folder."""
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        raise UserError(f"{folder} is not an embeddings folder: no {DESCRIPTION_FILE} in it")
    found: dict[str, Any] = read_json(path)
    try:
        if found["format"] != FORMAT:
            raise UserError(
                f"{folder} has format {found['format']}, and this unibct reads {FORMAT}; embed the "
                "images again"
            )
        shards = [shard_from(entry) for entry in found["shards"]]
        firsts = [0, *accumulate(shard.rows for shard in shards)]
        if [shard.first for shard in shards] != firsts[:-1] or firsts[-1] != found["images"]:
            raise UserError(
                f"{path} says {found['images']} images, but its shards have {firsts[-1]}; "
                "embed the images again"
            )
        if found["dtype"] not in DTYPES:
            raise UserError(f"{path}: unknown dtype {found['dtype']!r}")
        return Description(
            int(found["dim"]),
            found["dtype"],
            found["model"],
            FileNote(**found["classes"]),
            shards,
            found["source"],
        )
    except KeyError as error:
        raise UserError(f"{path} lacks the entry {error}; embed the images again") from error
    except (TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be understood ({error}); embed the images again") from error


def write_description(
    folder: Path,
    shards: Sequence[Shard],
    *,
    dim: int,
    dtype: str,
    fingerprint: str,
    class_names: Sequence[str],
    source: str | None = None,
) -> None:
    """Make the folder complete: the classes, then ``embeddings.json``.

    Classes are only ever added at the end, so an older description fits the longer file.
    """
    text = _lines(class_names, "class")
    _write_bytes(folder / CLASSES_FILE, text)
    write_json(
        folder / DESCRIPTION_FILE,
        {
            "format": FORMAT,
            "images": sum(shard.rows for shard in shards),
            "dim": dim,
            "dtype": dtype,
            "normalised": True,
            "model": fingerprint,
            "source": source,
            "classes": {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()},
            "shards": [asdict(shard) for shard in shards],
        },
    )


def write_shard(
    folder: Path,
    number: int,
    first: int,
    vectors: NDArray[Any],
    labels: NDArray[np.int64],
    ids: Sequence[str],
    dtype: str = "float32",
) -> Shard:
    """Write one shard's files, each whole; they count once a description names them.

    Args:
        folder: the store's.
        number: the shard's.
        first: its first row's number in the store.
        vectors: (rows, dim).
        labels: (rows,).
        ids: one for each row.
        dtype: ``float32`` or ``float16``.
    """
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    with np.errstate(over="ignore"):
        stored = vectors.astype(dtype, copy=False)
    finite = np.isfinite(stored).all(axis=1)
    if not finite.all():
        raise UserError(f"the embedding of {ids[int(finite.argmin())]} is not finite as {dtype}")
    names = (vectors_file(number), labels_file(number), ids_file(number))
    for name, array in ((names[0], stored), (names[1], labels.astype(np.int64, copy=False))):
        with atomic_file(folder / name) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    _write_bytes(folder / names[2], _lines(ids, "image id"))
    return Shard(first, len(stored), {name: _note(folder / name) for name in names})


def shard_is_whole(folder: Path, shard: Shard) -> bool:
    """Whether a shard's files are there, with the right content."""
    return all(
        (folder / name).is_file() and _note(folder / name) == note
        for name, note in shard.files.items()
    )


def _write_shards(
    folder: Path,
    embeddings: Embeddings,
    labels: NDArray[np.int64],
    dtype: str,
    shard_rows: int,
    before: Sequence[Shard] = (),
) -> Iterator[Shard]:
    offset = sum(shard.rows for shard in before)
    for number, begin in enumerate(range(0, len(embeddings), shard_rows), start=len(before)):
        part = slice(begin, begin + shard_rows)
        yield write_shard(
            folder,
            number,
            offset + begin,
            embeddings.vectors[part],
            labels[part],
            embeddings.ids[part],
            dtype,
        )


def vectors_file(number: int) -> str:
    """The name of a shard's vectors."""
    return f"vectors-{number:06}.npy"


def labels_file(number: int) -> str:
    """The name of a shard's labels."""
    return f"labels-{number:06}.npy"


def ids_file(number: int) -> str:
    """The name of a shard's ids."""
    return f"ids-{number:06}.txt"


def _read_now(value: T | Callable[[], T]) -> T:
    return cast("Callable[[], T]", value)() if callable(value) else value


def shard_from(entry: dict[str, Any]) -> Shard:
    """A shard as JSON describes it."""
    files = {name: FileNote(**note) for name, note in entry["files"].items()}
    return Shard(entry["first"], entry["rows"], files)


def _lines(values: Sequence[str], what: str) -> bytes:
    text = "".join(f"{value}\n" for value in values)
    if text.count("\n") != len(values):
        broken = next(value for value in values if "\n" in value)
        raise UserError(f"the {what} {broken!r} has a line break; rename it")
    return text.encode()


def _write_bytes(path: Path, data: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def _note(path: Path) -> FileNote:
    with path.open("rb") as file:
        return FileNote(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _check_file(path: Path, note: FileNote, *, verify: bool) -> None:
    try:
        size = path.stat().st_size
        if size != note.bytes:
            raise UserError(
                f"{path} is damaged ({size} bytes instead of {note.bytes}); embed the images again"
            )
        if verify and _note(path) != note:
            raise UserError(f"{path} is damaged (its checksum differs); embed the images again")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); embed the images again"
        ) from error


def _mapped(path: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    try:
        found = np.asarray(mapped_array(path))
    except UserError as error:
        raise UserError(f"{error}; embed the images again") from error
    if found.shape != shape or found.dtype != dtype:
        raise UserError(
            f"{path} holds {found.dtype} of shape {found.shape}, but {DESCRIPTION_FILE} says "
            f"{np.dtype(dtype)} of shape {shape}; embed the images again"
        )
    return found


def _all_labels(folder: Path, shards: Sequence[Shard]) -> NDArray[np.int64]:
    found = [
        _mapped(folder / labels_file(number), (shard.rows,), np.int64)
        for number, shard in enumerate(shards)
    ]
    if len(found) == 1:
        return found[0]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _ids(folder: Path, number: int, shard: Shard) -> list[str]:
    path = folder / ids_file(number)
    ids = _text(path).split("\n")[:-1]
    if len(ids) != shard.rows:
        raise UserError(f"{path} has {len(ids)} ids for {shard.rows} rows; embed the images again")
    return ids


def _classes(folder: Path, note: FileNote) -> tuple[str, ...]:
    """The class names that a description counts; the file may have more behind them."""
    path = folder / CLASSES_FILE
    data = _text(path).encode()[: note.bytes]
    if hashlib.sha256(data).hexdigest() != note.sha256:
        raise UserError(f"{path} is damaged (its checksum differs); embed the images again")
    return tuple(data.decode().split("\n")[:-1])


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); embed the images again") from error
