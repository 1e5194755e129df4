"""The image set: ids, classes, and a function that reads the pixels of an image.

Sets are made by readers, mostly of encoded images: the bytes of a PNG, JPEG or WebP file, which are
decoded when they are read. The end of this file is what readers share: files as sources, ids and
class names that are checked, and a warning about entries that are passed over.
"""

import hashlib
import multiprocessing
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, UnreadableImageError, decode
from unibct.errors import UserError
from unibct.progress import is_first_process

if TYPE_CHECKING:
    from unibct.data.training_classes import TrainingClasses


CLASSES_FILE = "classes.txt"  # beside numbered images: a line for the name of class 0, 1, …
_MAX_DIGITS = 1000  # a label with more digits is a word: Python would refuse to convert it
# A number in place of a name, perhaps with what numbered the classes: see ``class_identities``.
_NUMBER = re.compile(r"([+-]?\d+(?:\.0*)?)(?: of (\w+-[0-9a-f]{12}))?")
_SAMPLE_IMAGES = 32  # whose bytes tell a set from others with the same ids


# What reads one image by its id, or raises an UnreadableImageError: its pixels, (height, width) or
# (height, width, 3) uint8, and its encoded bytes, those of a PNG, JPEG or WebP file.
PixelSource: TypeAlias = Callable[[str], Pixels]
EncodedSource: TypeAlias = Callable[[str], bytes]


@runtime_checkable
class Stamped(Protocol):
    """An encoded source that can detect changed images without reading them."""

    def stamps(self, image_ids: Sequence[str]) -> Iterable[str]:
        """Return texts that change if an image changes: size and time of the files."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Images in a fixed order, each with an id and a class."""

    name: str  # what the user called the set, for messages
    ids: tuple[str, ...]  # unique, such as ``class/image.jpg``
    labels: NDArray[np.int64]  # (images,) indices into ``class_names``; each class has an image
    class_names: tuple[str, ...]
    read: PixelSource
    encoded: EncodedSource | None = None  # None if there are only pixels
    # What numbered the classes, if their names are mere numbers: the same number from another
    # source need not be the same class. None if the names are real names; for numbers it is never
    # None, but a name for this set, see ``numbering``.
    class_source: str | None = None
    # None for images. Else each "image" is a finished vector of this dimension: ``read`` returns
    # (1, vector_dim, 1) float32.
    vector_dim: int | None = None
    vectors_by: "TrainingClasses | None" = None  # what the model of such vectors has learnt from
    skip_bad: bool = False  # whoever reads the set leaves unreadable images out, or is refused

    def __post_init__(self) -> None:
        if self.class_source is None and are_numbers(self.class_names):
            object.__setattr__(self, "class_source", numbering(self))

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: NDArray[Any] | Sequence[int]) -> "ImageSet":
        """Return a set of some of the images.

        Classes without an image are dropped. The other classes keep their order.
        """
        rows: list[int] = np.asarray(indices, dtype=np.int64).tolist()
        old_labels, labels = np.unique(self.labels[rows], return_inverse=True)
        return replace(
            self,
            ids=tuple(self.ids[i] for i in rows),
            labels=labels.astype(np.int64),
            class_names=tuple(self.class_names[int(label)] for label in old_labels),
        )

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The type of the pixels, or of the vectors' numbers."""
        return np.dtype(np.uint8 if self.vector_dim is None else np.float32)

    @property
    def class_identities(self) -> tuple[str, ...]:
        """What tells each class from all classes of any set, see ``class_identities``."""
        return class_identities(self.class_names, self.class_source)

    @cached_property
    def position(self) -> dict[str, int]:
        """The index of each id in ``ids``."""
        return {image_id: i for i, image_id in enumerate(self.ids)}

    @cached_property
    def digest(self) -> str:
        """A hash of the ids, their order and their classes, but not of the pixels."""
        state = hashlib.sha256()
        for image_id, label in zip(self.ids, self.labels, strict=True):
            state.update(f"{image_id}\0{self.class_names[label]}\n".encode())
        return state.hexdigest()


def class_identities(class_names: Sequence[str], class_source: str | None) -> tuple[str, ...]:
    """Return a text for each class; two sets have a class in common if they have the same text.

    ``class_source`` is what numbered the classes; None if the names are real names.
    """
    if class_source is None:
        return tuple(class_names)
    return tuple(f"{name} of {class_source}" for name in class_names)


def are_numbers(class_names: Iterable[str]) -> bool:
    """Return whether classes are called by numbers, which mean something within one set only."""
    return any(_NUMBER.fullmatch(name) for name in class_names)


def numbering(images: ImageSet) -> str:
    """Return a name for a set that numbers its classes; it depends on all ids and their classes.

    A copy has the same name, and so have the parts that are selected from it. The content of some
    files or vectors counts too: another set may use the same ids.
    """
    state = hashlib.sha256(images.digest.encode())
    sample = images.ids[:: -(-len(images) // _SAMPLE_IMAGES) or 1]
    for image_id in sample if images.encoded is not None or images.vector_dim is not None else ():
        try:
            read = images.encoded
            content = read(image_id) if read else images.read(image_id).tobytes()
            state.update(hashlib.sha256(content).digest())
        except UnreadableImageError:
            state.update(b"unreadable")
    return f"set-{state.hexdigest()[:12]}"


def names_and_source(class_names: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Return numbers and what numbered them, of names that are such identities; else the names."""
    matches = [_NUMBER.fullmatch(name) for name in class_names]
    sources = {match and match[2] for match in matches}
    if len(sources) != 1 or None in sources:
        return tuple(class_names), None
    return tuple(match[1] for match in matches if match), sources.pop()


def select_listed(images: ImageSet, list_file: Path) -> ImageSet:
    """Return the images whose ids are in a list file, in the order of the set.

    The file has one id per line. `unibct split` writes such files.
    """
    indices: list[int] = []
    for image_id, number in read_id_list(list_file).items():
        if image_id not in images.position:
            raise UserError(
                f"{list_file}, line {number}: {image_id!r} is not an image of {images.name}"
            )
        indices.append(images.position[image_id])
    return images.select(np.sort(np.asarray(indices)))


def read_id_list(list_file: Path) -> dict[str, int]:
    """Return the ids of a list file in its order, each with the number of its line.

    The file has one id per line, in UTF-8. Empty lines are passed over.
    """
    try:
        lines = list_file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(
            f"{list_file} cannot be read ({error.strerror}); it must be a file with one id per line"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{list_file} is not a UTF-8 text file of ids") from error
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        row_id = line.strip("\r\n")
        if row_id in line_of:
            raise UserError(f"{list_file}, line {number}: {row_id!r} is listed twice")
        if row_id:
            line_of[row_id] = number
    if not line_of:
        raise UserError(f"{list_file} lists no id")
    return line_of


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
    """Refuse to write ``out`` among class folders: it would be read as a class the next time.

    A name that begins with a dot does no harm.
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
    """Return the class names and (images,) the labels of images whose classes are given as words.

    Numbers come first, by value, and then other words by alphabet.
    """

    def sort_key(word: str) -> tuple[int, int, str]:
        is_number = word.isdecimal() and len(word) <= _MAX_DIGITS
        return (0, int(word), word) if is_number else (1, 0, word)

    class_names = sorted(set(words), key=sort_key)
    label_of = {word: label for label, word in enumerate(class_names)}
    return tuple(class_names), np.array([label_of[word] for word in words], dtype=np.int64)


def names_of_numbers(path: Path, numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the names that ``CLASSES_FILE`` has for rising numbers; without it, the numbers."""
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


class PassedOverWarning(UserWarning):
    """Some entries of a data set are not read."""


def warn_of_passed_over(set_name: str, entries: Sequence[str], reason: str) -> None:
    """Warn once, in the first process, that entries are not read; nothing if there are none."""
    if not entries or not is_first_process() or multiprocessing.parent_process() is not None:
        return
    count = f"{len(entries)} entries are" if len(entries) > 1 else "1 entry is"
    text = f"{set_name}: {count} passed over, first {min(entries)}: {reason}"
    warnings.warn(text, PassedOverWarning, stacklevel=2)
