"""Image sets whose images are encoded files somewhere: in a folder, a record, an archive."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.data.images import Pixels, UnreadableImageError, decode
from unibct.data.sets import EncodedSource, ImageSet
from unibct.errors import UserError


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


def classes_of(words: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The class names among labels (numbers in their order, then words), and each one's index."""

    def order(word: str) -> tuple[int, int, str]:
        return (0, int(word), word) if word.isdecimal() else (1, 0, word)

    names = sorted(set(words), key=order)
    index = {word: i for i, word in enumerate(names)}
    return tuple(names), np.array([index[word] for word in words], dtype=np.int64)


def checked_id(image_id: str) -> str:
    """An id must fit on one line of a UTF-8 list file."""
    if any(mark in image_id for mark in "\n\r"):
        raise UserError(f"{image_id!r} has a line break in its name; rename it")
    try:
        image_id.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{image_id!r} is not valid UTF-8; rename it") from error
    return image_id
