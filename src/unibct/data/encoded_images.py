"""Image sets whose images are encoded files somewhere: in a folder, a record, an archive."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, UnreadableImageError, decode
from unibct.data.image_set import EncodedSource, ImageSet
from unibct.errors import UserError

_MOST_DIGITS = 1000  # of a number; what is longer is a word (Python refuses to convert it)


@dataclass(frozen=True)
class _Decoded:
    """Decodes what an encoded source gives; goes with it to other processes."""

    encoded: EncodedSource

    def __call__(self, image_id: str) -> Pixels:
        return decode(self.encoded(image_id))


def encoded_set(
    name: str,
    ids: tuple[str, ...],
    labels: NDArray[np.int64],
    class_names: tuple[str, ...],
    encoded: EncodedSource,
) -> ImageSet:
    """An image set that decodes its images when they are read."""
    return ImageSet(name, ids, labels, class_names, _Decoded(encoded), encoded)


@dataclass(frozen=True)
class FileSource:
    """The bytes of files beneath a folder; an id is a path."""

    root: Path

    def __call__(self, image_id: str) -> bytes:
        """A file's bytes."""
        try:
            return (self.root / image_id).read_bytes()
        except OSError as error:
            raise UnreadableImageError(error.strerror or str(error)) from error

    def stamps(self, image_ids: Sequence[str]) -> Iterator[str]:
        """Of each file."""
        return (file_stamp(os.path.join(self.root, image_id)) for image_id in image_ids)


def file_stamp(path: str | Path) -> str:
    """Size and time of the last change of a file; empty if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def classes_of(words: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The class names among labels (numbers in their order, then words), and each one's index."""

    def order(word: str) -> tuple[int, int, str]:
        is_number = word.isdecimal() and len(word) <= _MOST_DIGITS
        return (0, int(word), word) if is_number else (1, 0, word)

    names = sorted(set(words), key=order)
    index = {word: i for i, word in enumerate(names)}
    return tuple(names), np.array([index[word] for word in words], dtype=np.int64)


def checked_id(image_id: str) -> str:
    """An id must fit on one line of a UTF-8 list file."""
    if any(mark in image_id for mark in "\n\r\0"):
        raise UserError(f"{image_id!r} has a line break or a zero byte in its name; rename it")
    try:
        image_id.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{image_id!r} is not valid UTF-8; rename it") from error
    return image_id
