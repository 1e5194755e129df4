"""Writing a data set in another layout; the encoded images stay as they are, to the byte."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import UnreadableImageError, decode, encode_png, image_suffix
from unibct.data.image_set import ImageSet, Stamped
from unibct.data.readers.record_file import RecordFile, pack_record, write_record
from unibct.data.readers.recordio import CLASSES_FILE, PROPERTY_FILE
from unibct.data.resumable_folder import ResumableFolder, resumable_folder
from unibct.errors import UserError
from unibct.progress import Progress, Silent

_EXACT = 1 << 24  # above it float32 skips whole numbers
_NAMED = 10  # unreadable images that an error names
_SAVED = 4000  # images from one note of the progress to the next


def convert(
    images: ImageSet,
    out: Path,
    *,
    to: str,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write every image of a set to a new folder in another layout.

    A run that was stopped or killed goes on when it is called again with the same set, if that
    is made of files (``Stamped``).

    Args:
        images: the set.
        out: a new folder; it is there whole or not at all.
        to: a name from ``LAYOUTS``.
        skip_bad: leave images out that are no PNG, JPEG or WebP, instead of refusing.
        progress: told of each image.

    Returns:
        How many images were written.
    """
    if to not in LAYOUTS:
        raise UserError(f"unknown layout {to!r}; choose one of {', '.join(LAYOUTS)}")
    progress = progress or Silent()
    with resumable_folder(out, _fingerprint(images, to), progress.note) as folder:
        bad = _write_all(images, to, folder, progress)
        written = len(images) - len(bad)
        if bad and not (skip_bad and written):
            more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            raise UserError(
                f"{images.name} has {len(bad)} unreadable images: {'; '.join(bad[:_NAMED])}{more}. "
                "Mend or remove, or leave them out with --skip-bad-images"
            )
    if bad:
        progress.note(f"left out {len(bad)} unreadable images: {'; '.join(bad)}")
    return written


def _fingerprint(images: ImageSet, to: str) -> str | None:
    """Changes with the layout and with the set's images; None if these may change unseen."""
    if not isinstance(images.encoded, Stamped):
        return None
    state = hashlib.sha256(f"{to} {images.digest}".encode())
    for stamp in images.encoded.stamps(images.ids):
        state.update(f"{stamp}\n".encode())
    return state.hexdigest()


def _write_all(images: ImageSet, to: str, folder: ResumableFolder, progress: Progress) -> list[str]:
    """Write what is left to do, class by class, and name the images that are none."""
    order = np.argsort(images.labels, kind="stable")
    log = folder.grow("bad.jsonl")
    log.seek(0)
    bad: dict[int, str] = dict(json.loads(line) for line in log)
    before = order[: folder.done]
    layout = LAYOUTS[to](images, folder, before[~np.isin(before, list(bad))])
    with progress.task(f"writing {to}", len(images), done=folder.done) as advance:
        for done, row in enumerate(map(int, order[folder.done :]), start=folder.done + 1):
            try:
                data = _encoded(images, images.ids[row])
                suffix = image_suffix(data)
            except UnreadableImageError as error:
                bad[row] = f"{images.ids[row]} ({error})"
                log.write(f"{json.dumps([row, bad[row]])}\n".encode())
            else:
                layout.add(row, data, suffix)
            advance(1)
            if done % _SAVED == 0:
                folder.save(done)
    layout.finish()
    return list(bad.values())


def _encoded(images: ImageSet, image_id: str) -> bytes:
    if images.encoded is None:
        return encode_png(images.read(image_id))
    return images.encoded(image_id)


class Layout(Protocol):
    """Writes images to a folder; it gets them class by class."""

    def add(self, row: int, data: bytes, suffix: str) -> None:
        """Write the encoded image of a row of the set."""
        ...

    def finish(self) -> None:
        """Write what comes after the last image."""
        ...


class FolderLayout:
    """``<class>/<image>``; the image is named after its id."""

    def __init__(
        self, images: ImageSet, folder: ResumableFolder, before: NDArray[np.int64]
    ) -> None:
        for name in images.class_names:
            if not name or name.startswith(".") or any(mark in name for mark in "/\\\0"):
                raise UserError(f"class {name!r} of {images.name} cannot be a folder's name")
        self._images = images
        self._folder = folder.data
        self._log = folder.grow("names.txt")
        self._log.seek(0)
        self._names = {line.decode().removesuffix("\n") for line in self._log}

    def add(self, row: int, data: bytes, suffix: str) -> None:
        """Write a file."""
        class_name = self._images.class_names[int(self._images.labels[row])]
        tail = self._images.ids[row].removeprefix(f"{class_name}/").replace("/", "_")
        tail = tail.lstrip(".")  # hidden files are no images
        if not tail.lower().endswith((suffix, suffix.replace("jpg", "jpeg"))):
            tail += suffix
        name = f"{class_name}/{tail}"
        if name in self._names:
            raise UserError(f"{self._images.name}: two images would be called {name}; rename one")
        self._names.add(name)
        self._log.write(f"{name}\n".encode())
        (self._folder / class_name).mkdir(exist_ok=True)
        (self._folder / name).write_bytes(data)

    def finish(self) -> None:
        """All is there."""


class RecordioLayout:
    """``train.rec``, ``train.idx`` and ``property`` in InsightFace's layout, and the class names.

    Keys 1…N are the images, class by class; then a record for each class with its range of keys,
    and last, with key 0, the range of those.
    """

    def __init__(
        self, images: ImageSet, folder: ResumableFolder, before: NDArray[np.int64]
    ) -> None:
        if len(images) + len(images.class_names) + 1 >= _EXACT:
            raise UserError(
                f"{images.name} has {len(images):,} images: above {_EXACT:,} the layout's float "
                "keys are no longer exact; split the set into several files"
            )
        self._images = images
        self._folder = folder.data
        self._records = folder.grow("data/train.rec")
        self._index = folder.grow("data/train.idx")
        labels, counts = np.unique(images.labels[before], return_counts=True)
        self._labels: list[int] = labels.tolist()  # of the classes that have an image
        self._counts: list[int] = counts.tolist()
        self._key = len(before)

    def add(self, row: int, data: bytes, suffix: str) -> None:
        """Write the record of an image."""
        label = int(self._images.labels[row])
        if not self._labels or self._labels[-1] != label:
            self._labels.append(label)
            self._counts.append(0)
        self._counts[-1] += 1
        self._key += 1
        self._write(self._key, data, float(len(self._labels) - 1))

    def finish(self) -> None:
        """Write the records about classes, and the small files."""
        identities, first = self._key + 1, 1
        for key, count in enumerate(self._counts, start=identities):
            self._write(key, b"", [float(first), float(first + count)])
            first += count
        self._write(0, b"", [float(identities), float(identities + len(self._counts))])
        self._records.flush()
        height, width = _shape(self._folder / "train.rec")
        size = f"{len(self._labels)},{height},{width}"
        (self._folder / PROPERTY_FILE).write_text(size, encoding="ascii")
        names = "".join(f"{self._images.class_names[label]}\n" for label in self._labels)
        (self._folder / CLASSES_FILE).write_text(names, encoding="utf-8", newline="\n")

    def _write(self, key: int, payload: bytes, labels: float | list[float]) -> None:
        offset = write_record(self._records, pack_record(payload, labels, key))
        self._index.write(f"{key}\t{offset}\n".encode())


def _shape(records: Path) -> tuple[int, int]:
    """Height and width of the first image that can be decoded; zeros if none can."""
    file = RecordFile(records)
    for offset in file.scan():
        try:
            height, width = decode(file.payload(offset)).shape[:2]
        except UnreadableImageError:
            continue
        return height, width
    return 0, 0


LAYOUTS: dict[str, Callable[[ImageSet, ResumableFolder, NDArray[np.int64]], Layout]] = {
    "recordio": RecordioLayout,
    "folder": FolderLayout,
}
