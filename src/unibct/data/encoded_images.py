"""What readers build image sets from: encoded images in files, checked ids, class names.

An encoded image is the bytes of a PNG, JPEG or WebP file; it is decoded when it is read.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, UnreadableImageError, decode
from unibct.data.image_set import EncodedSource, ImageSet, names_and_source
from unibct.errors import UserError

CLASSES_FILE = "classes.txt"
_MAX_DIGITS = 1000  # a label with more digits is a word: Python would refuse to convert it


@dataclass(frozen=True)
class _DecodingSource:
    """A pixel source that decodes the images of an encoded source. It can be pickled."""

    encoded: EncodedSource

    def __call__(self, image_id: str) -> Pixels:
        return decode(self.encoded(image_id))


def encoded_set(
    name: str,
    ids: tuple[str, ...],
    labels: NDArray[np.int64],
    class_names: tuple[str, ...],
    encoded: EncodedSource,
    class_source: str | None = None,
) -> ImageSet:
    """Return an image set that decodes its images when they are read; see ``ImageSet``."""
    read = _DecodingSource(encoded)
    if class_source is None:
        class_names, class_source = names_and_source(class_names)
    return ImageSet(name, ids, labels, class_names, read, encoded, class_source)


@dataclass(frozen=True)
class FileSource:
    """The encoded images in the files below a folder; an id is a path relative to it."""

    root: Path

    def __call__(self, image_id: str) -> bytes:
        """Return the bytes of a file."""
        try:
            return (self.root / image_id).read_bytes()
        except OSError as error:
            raise UnreadableImageError(error.strerror or str(error)) from error

    def stamps(self, image_ids: Sequence[str]) -> Iterator[str]:
        """Return the stamp of each file."""
        return (file_stamp(os.path.join(self.root, image_id)) for image_id in image_ids)


def require_outside(images: ImageSet, out: Path) -> None:
    """Refuse a folder among class folders, which would be read as a class the next time.

    Args:
        images: the set.
        out: what will be written; a name that begins with a dot does no harm.
    """
    root = Path(images.name)
    if not root.is_dir() or not (root / images.ids[0]).exists():
        return
    place, top = out.resolve(), root.resolve()
    if place.is_relative_to(top) and not place.relative_to(top).as_posix().startswith("."):
        raise UserError(
            f"{out} is within the images, {root}, and would be read as a class the next time; "
            "write to another place"
        )


def file_stamp(path: str | Path) -> str:
    """Return the size and modification time of a file as text; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def classes_of(words: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the class names and the labels of images whose classes are given as words.

    Args:
        words: the class of each image.

    Returns:
        The class names, first numbers by value and then other words by alphabet, and
        (images,) int64, the index of each image's class.
    """

    def sort_key(word: str) -> tuple[int, int, str]:
        is_number = word.isdecimal() and len(word) <= _MAX_DIGITS
        return (0, int(word), word) if is_number else (1, 0, word)

    class_names = sorted(set(words), key=sort_key)
    label_of = {word: label for label, word in enumerate(class_names)}
    return tuple(class_names), np.array([label_of[word] for word in words], dtype=np.int64)


def names_of_numbers(path: Path, numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the names of classes that rise in number, or the numbers if there is no such file.

    Args:
        path: ``classes.txt`` beside the images, with the name of class 0, 1, … a line.
        numbers: of the classes.
    """
    if not path.is_file():
        return tuple(str(number) for number in numbers)
    try:
        names = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text with a class name a line; remove it to go without names"
        ) from error
    repeated = sorted({name for name, count in Counter(names).items() if count > 1})
    if repeated:
        raise UserError(f"{path} names two classes {repeated[0]!r}; rename one")
    if numbers[-1] >= len(names):
        raise UserError(
            f"{path} has {len(names)} lines, but there is a class {numbers[-1]}; remove it "
            "to go without names"
        )
    return tuple(names[number] for number in numbers)


def checked_id(image_id: str) -> str:
    """Return the id; raise a ``UserError`` if it does not fit on one line of a UTF-8 list file."""
    if any(mark in image_id for mark in "\n\r\0"):
        raise UserError(f"{image_id!r} has a line break or a zero byte in its name; rename it")
    try:
        image_id.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{image_id!r} is not valid UTF-8; rename it") from error
    return image_id
