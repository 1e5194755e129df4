"""Writing an image set in another layout. The bytes of the encoded images do not change.

A conversion can be killed at any time: the next run continues where it stopped.
"""

import json
import os
import shutil
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from unibct import progress
from unibct.data.checked_set import source_stamp
from unibct.data.decoding import (
    UnreadableImageError,
    decode,
    encode_png,
    image_suffix,
    unreadable_images_error,
)
from unibct.data.image_set import CLASSES_FILE, ImageSet, require_outside
from unibct.data.readers import LAYOUTS
from unibct.data.readers.recordio import PROPERTY_FILE, RecordFile, pack_record, write_record
from unibct.errors import UserError
from unibct.files import atomic_folder, partial_folder, read_json, require_absent, sync, write_json

_SYNC_THREADS = 16  # they mostly wait for the disk, which writes several files at a time
_LARGEST_EXACT = 1 << 24  # float32 cannot represent every integer above this
_SAVE_EVERY = 4000  # images


def convert(images: ImageSet, out: Path, *, to: str) -> int:
    """Write every image of a set to a new folder in another layout.

    A run that was stopped or killed, or that has met unreadable images, is continued by the next
    call with the same set, if the set is read from files (``Stamped``: changes are noticed).

    Args:
        images: the set. With ``skip_bad``, images that are not PNG, JPEG or WebP are left out
            too.
        out: a new folder; it appears when it is complete.
        to: a name from ``LAYOUTS``.

    Returns:
        The number of images written.
    """
    LAYOUTS.find(to)
    require_outside(images, out)
    stamp = source_stamp(images)
    with resumable_folder(out, stamp and f"{to} {images.digest} {stamp}") as folder:
        writer, all_problems = _write_all(images, to, folder)
        problems = [problem.text for problem in all_problems]
        written = len(images) - len(problems)
        if problems and not (images.skip_bad and written):
            if written and not any(problem.may_pass for problem in all_problems):
                folder.keep(len(images))  # the next run may leave the bad images out
            raise unreadable_images_error(images.name, problems)
        writer.finish()
    if problems:
        progress.note(f"left out {len(problems)} unreadable images: {'; '.join(problems)}")
    return written


class _Problem(NamedTuple):
    """An image that cannot be converted."""

    row: int
    text: str  # names it, and says why
    may_pass: bool = False  # the file could not be read, which may be otherwise next time


def _write_all(
    images: ImageSet, to: str, folder: "ResumableFolder"
) -> tuple["LayoutWriter", list[_Problem]]:
    """Write the remaining images class by class.

    Returns the writer, to be finished, and the unreadable images.
    """
    order = np.argsort(images.labels, kind="stable")
    problem_file = folder.grow("bad.jsonl")
    problem_file.seek(0)
    problems = [_Problem(*json.loads(line)) for line in problem_file]
    done_rows = order[: folder.done]
    bad_rows = [problem.row for problem in problems]
    written_rows = done_rows[~np.isin(done_rows, bad_rows)]
    writer: LayoutWriter = LAYOUTS[to].load()(images, folder, written_rows)
    with progress.task(f"writing {to}", len(images), done=folder.done) as advance:
        for done, row in enumerate(map(int, order[folder.done :]), start=folder.done + 1):
            image_id = images.ids[row]
            try:
                read = images.encoded
                data = read(image_id) if read else encode_png(images.read(image_id))
                suffix = image_suffix(data)
            except UnreadableImageError as error:
                may_pass = isinstance(error.__cause__, OSError)
                problems.append(_Problem(row, f"{image_id} ({error})", may_pass))
                problem_file.write(f"{json.dumps(problems[-1])}\n".encode())
            else:
                writer.add(row, data, suffix)
            advance(1)
            if done % _SAVE_EVERY == 0:
                folder.save(done)
    return writer, problems


class LayoutWriter(Protocol):
    """Writes images in a layout, class by class.

    Its class takes the set, the folder and the rows that earlier runs have written.
    """

    def add(self, row: int, data: bytes, suffix: str) -> None:
        """Write the encoded image at a row of the set."""
        ...

    def finish(self) -> None:
        """Write what follows the last image."""
        ...


class FolderWriter:
    """``<class>/<image>``; the file name is made from the image's id.

    Classes that are mere numbers get their identities as names, which say which file numbered
    them: in a folder, the same name is the same class.
    """

    def __init__(
        self, images: ImageSet, folder: "ResumableFolder", done_rows: NDArray[np.int64]
    ) -> None:
        self._class_folders = images.class_identities
        for name in self._class_folders:
            if not name or name.startswith(".") or any(mark in name for mark in "/\\\0"):
                raise UserError(f"class {name!r} of {images.name} cannot be a folder's name")
        self._images = images
        self._folder = folder
        self._name_file = folder.grow("names.txt")
        self._name_file.seek(0)
        self._names = {line.decode().removesuffix("\n") for line in self._name_file}

    def add(self, row: int, data: bytes, suffix: str) -> None:
        """Write a file."""
        label = int(self._images.labels[row])
        file_name = self._images.ids[row]
        for class_name in (self._class_folders[label], self._images.class_names[label]):
            file_name = file_name.removeprefix(f"{class_name}/")
        file_name = file_name.replace("/", "_")
        file_name = file_name.lstrip(".")  # because readers ignore hidden files
        if not file_name.lower().endswith((suffix, suffix.replace("jpg", "jpeg"))):
            file_name += suffix
        name = f"{self._class_folders[label]}/{file_name}"
        if name in self._names:
            raise UserError(f"{self._images.name}: two images would be called {name}; rename one")
        self._names.add(name)
        self._name_file.write(f"{name}\n".encode())
        self._folder.add(name, data)

    def finish(self) -> None:
        """Do nothing: this layout has only images."""


class RecordioWriter:
    """InsightFace's layout: ``train.rec``, ``train.idx``, ``property``, and ``classes.txt``.

    The records with the keys 1…N are the images, class by class. Then each class has a record with
    the range of its images' keys. The last record, with key 0, has the range of the classes' keys.
    """

    def __init__(
        self, images: ImageSet, folder: "ResumableFolder", done_rows: NDArray[np.int64]
    ) -> None:
        if len(images) + len(images.class_names) + 1 >= _LARGEST_EXACT:
            raise UserError(
                f"{images.name} has {len(images):,} images: above {_LARGEST_EXACT:,} the layout's "
                "float keys are no longer exact; split the set into several files"
            )
        self._images = images
        self._folder = folder.data
        self._records = folder.grow("data/train.rec")
        self._index = folder.grow("data/train.idx")
        labels, counts = np.unique(images.labels[done_rows], return_counts=True)
        self._labels: list[int] = labels.tolist()  # the classes that have an image so far
        self._counts: list[int] = counts.tolist()  # how many images each of them has
        self._key = len(done_rows)

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
        """Write the records of the classes, and the small files."""
        class_key, image_key = self._key + 1, 1  # the first key of the classes, and of a class
        for key, count in enumerate(self._counts, start=class_key):
            self._write(key, b"", [float(image_key), float(image_key + count)])
            image_key += count
        self._write(0, b"", [float(class_key), float(class_key + len(self._counts))])
        self._records.flush()
        height, width = _first_image_size(self._folder / "train.rec")
        properties = f"{len(self._labels)},{height},{width}"
        (self._folder / PROPERTY_FILE).write_text(properties, encoding="ascii")
        # Identities, not names: numbers of a file without names must not become names here.
        identities = self._images.class_identities
        names = "".join(f"{identities[label]}\n" for label in self._labels)
        (self._folder / CLASSES_FILE).write_text(names, encoding="utf-8", newline="\n")

    def _write(self, key: int, payload: bytes, labels: float | list[float]) -> None:
        offset = write_record(self._records, pack_record(payload, labels, key))
        self._index.write(f"{key}\t{offset}\n".encode())


def _first_image_size(records: Path) -> tuple[int, int]:
    """Return height and width of the first image that can be decoded; (0, 0) if none can."""
    file = RecordFile(records)
    for offset in file.scan():
        try:
            height, width = decode(file.payload(offset)).shape[:2]
        except UnreadableImageError:
            continue
        return height, width
    return 0, 0


class ResumableFolder:
    """A folder that is being written; see ``resumable_folder``."""

    def __init__(self, root: Path, fingerprint: str | None, open_files: ExitStack) -> None:
        self.data = root / "data"  # becomes the final folder; temporary files are next to it
        self.done = 0  # how many items earlier runs have done
        self.is_kept = False  # whether the next run may continue after a ``UserError``
        self._root = root
        self._progress_file = root / "progress.json"
        self._fingerprint = fingerprint
        self._saved_sizes: dict[str, int] = {}
        self._growing_files: dict[str, BinaryIO] = {}
        self._unsynced_files: list[Path] = []
        self._open_files = open_files
        saved: Any = read_json(self._progress_file) if self._progress_file.is_file() else None
        if saved is not None and self._can_continue(saved):
            self.done, self._saved_sizes = saved["done"], saved["sizes"]
            progress.note(f"going on after {self.done:,} images of an earlier run")
            return
        if saved is not None:
            progress.note("what an earlier run has read may have changed since: starting again")
        self._progress_file.unlink(missing_ok=True)
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir()

    def _can_continue(self, saved: dict[str, Any]) -> bool:
        """Return whether what an earlier run saved is still complete and up to date."""
        files = [(self._root / name, size) for name, size in saved["sizes"].items()]
        return (
            saved["fingerprint"] == self._fingerprint
            and self.data.is_dir()
            and all(path.is_file() and path.stat().st_size >= size for path, size in files)
        )

    def grow(self, name: str) -> BinaryIO:
        """Open a file to append to and to read, with the content it had at the last ``save``.

        A ``name`` below ``data/`` becomes part of the final folder.
        """
        file = self._open_files.enter_context((self._root / name).open("a+b"))
        file.truncate(self._saved_sizes.get(name, 0))
        file.seek(0, os.SEEK_END)
        self._growing_files[name] = file
        return file

    def add(self, name: str, content: bytes) -> None:
        """Write a small file at once; ``name`` is its path below ``data/``."""
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self._unsynced_files.append(path)

    def sync(self) -> None:
        """Flush the files that ``add`` has written, and the folders that name them."""
        folders = {folder for path in self._unsynced_files for folder in path.parents}
        inside = [f for f in folders if f.is_relative_to(self.data)]
        with ThreadPoolExecutor(_SYNC_THREADS) as pool:
            list(pool.map(sync, self._unsynced_files))
            list(pool.map(sync, inside))
        self._unsynced_files.clear()

    def save(self, done: int) -> None:
        """Record that the files contain the first ``done`` items, once they are on the disk."""
        if self._fingerprint is None:
            return
        self.sync()
        for file in self._growing_files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._growing_files.items()}
        saved = {"fingerprint": self._fingerprint, "done": done, "sizes": sizes}
        write_json(self._progress_file, saved)

    def keep(self, done: int) -> None:
        """Save, and let the next run continue although this one ends in a ``UserError``."""
        self.save(done)
        self.is_kept = self._fingerprint is not None


@contextmanager
def resumable_folder(path: Path, fingerprint: str | None) -> Generator[ResumableFolder]:
    """Yield a folder to fill, in several runs if need be; it becomes ``path`` at the end.

    Until then it is a hidden folder next to its final place. Large files are only appended to.
    Their sizes are saved regularly: if the block is interrupted or the process is killed, the next
    run truncates them to the saved sizes and continues from there, unless the ``fingerprint`` of
    what the folder is made from has changed; with None every run starts from the beginning.

    A ``UserError`` removes everything, because its cause has to be repaired first, which changes
    the input; not if the block has called ``keep``.
    """
    require_absent(path)
    path = path.resolve()
    if path == Path.cwd():
        raise UserError(f"{path} is the current folder; name a new one inside it")
    root = partial_folder(path)
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / "lock", blocking=False):
            with ExitStack() as open_files:
                folder = ResumableFolder(root, fingerprint, open_files)
                try:
                    yield folder
                except UserError:
                    if not folder.is_kept:
                        shutil.rmtree(root, ignore_errors=True)
                    raise
                folder.sync()
            with atomic_folder(path) as temporary:
                temporary.rmdir()
                folder.data.rename(temporary)
    except Timeout as error:
        raise UserError(f"another process is writing {path}; wait until it has finished") from error
    shutil.rmtree(root, ignore_errors=True)
