"""Reader of RecordIO sets (``train.rec``, ``train.idx``, ``property``): MS1Mv3 and its kin."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.data.encoded_images import encoded_set, file_stamp
from unibct.data.image_set import ImageSet
from unibct.data.readers.record_file import DamagedRecordError, RecordFile, read_index
from unibct.errors import UserError

SUFFIX = ".rec"
PROPERTY_FILE = "property"
CLASSES_FILE = "classes.txt"
_IDENTITY_FLAG = 2  # a record of two labels and no image: a range of keys
_IDENTITY_BYTES = 32
_LARGEST_LABEL = 1 << 24  # above it float32 skips whole numbers, and classes run together


@dataclass(frozen=True)
class RecordSource:
    """The encoded image of an id ``class/key``."""

    file: RecordFile
    keys: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __call__(self, image_id: str) -> bytes:
        """What follows the record's header and labels."""
        row = int(image_id.rpartition("/")[2]) - int(self.keys[0])
        if len(self.keys) <= int(self.keys[-1]) - int(self.keys[0]):  # keys have gaps
            row = int(np.searchsorted(self.keys, row + int(self.keys[0])))
        return self.file.payload(int(self.offsets[row]))

    def stamps(self, image_ids: Sequence[str]) -> list[str]:
        """Of the one file."""
        return [file_stamp(self.file.path)]


def is_record_set(path: Path) -> bool:
    """Whether a path is a ``.rec`` file, or a folder with one."""
    if path.is_dir():
        return any(found.is_file() for found in path.glob(f"*{SUFFIX}"))
    return path.suffix == SUFFIX


def read_records(name: str) -> ImageSet:
    """All images of a RecordIO file, in the order of their keys; an id is ``class/key``.

    The class is the record's label. In InsightFace's layout the record of key 0 says that there
    are records of identities besides, which are no images; without it every record is an image.
    Without an index file, the records are found one after the other.
    """
    file = RecordFile(_record_path(Path(name)))
    index = file.path.with_suffix(".idx")
    if index.is_file():
        keys, offsets = read_index(index)
    else:
        offsets = np.fromiter(file.scan(), dtype=np.int64)
        keys = np.arange(len(offsets), dtype=np.int64)
    try:
        heads = file.heads(offsets)
    except DamagedRecordError as error:
        if not index.is_file():
            raise
        raise UserError(f"{error}; is {index.name} the index of this file?") from error
    about_identities = (heads.flag == _IDENTITY_FLAG) & (heads.length == _IDENTITY_BYTES)
    # Key 0 is written last, so that a file without an index has it at its end.
    first = 0 if index.is_file() else -1
    has_identities = bool(about_identities[first]) and (keys[0] == 0)
    images = ~about_identities if has_identities else np.ones(len(keys), dtype=bool)
    if not images.any():
        raise UserError(f"{file.path} holds no image")
    keys, offsets, found = keys[images], offsets[images], heads.label[images]
    whole = (found >= 0) & (found <= _LARGEST_LABEL) & (found == np.floor(found))
    bad = np.flatnonzero(~whole)
    if len(bad):
        raise UserError(
            f"{file.path}: the record of key {keys[bad[0]]} has the label {found[bad[0]]}; a class "
            f"is a whole number from 0 to {_LARGEST_LABEL}"
        )
    numbers, labels = np.unique(found.astype(np.int64), return_inverse=True)
    _check_property(file.path.parent / PROPERTY_FILE, int(numbers[-1]))
    ids = tuple(f"{c}/{k}" for c, k in zip(numbers[labels].tolist(), keys.tolist(), strict=True))
    source = RecordSource(file, keys, offsets)
    classes = _class_names(file.path.parent / CLASSES_FILE, numbers)
    return encoded_set(name, ids, labels.astype(np.int64), classes, source)


def _record_path(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(p for p in path.glob(f"*{SUFFIX}") if p.is_file())
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise UserError(f"{path} has {len(found)} RecordIO files ({names}); name one of them")
    if not found:
        raise UserError(f"{path} has no {SUFFIX} file")
    return found[0]


def _class_names(path: Path, numbers: NDArray[np.int64]) -> tuple[str, ...]:
    """The classes' names, if `unibct convert` left them; else their numbers."""
    if not path.is_file():
        return tuple(str(number) for number in numbers.tolist())
    try:
        names = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text with a class name a line; remove it to go without names"
        ) from error
    twice = sorted({name for name, count in Counter(names).items() if count > 1})
    if twice:
        raise UserError(f"{path} names two classes {twice[0]!r}; rename one")
    if numbers[-1] >= len(names):
        raise UserError(
            f"{path} has {len(names)} lines, but a record has the label {numbers[-1]}; remove it "
            "to go without names"
        )
    return tuple(names[int(number)] for number in numbers)


def _check_property(path: Path, largest: int) -> None:
    """``property`` says how many classes there are: num_classes,height,width."""
    if not path.is_file():
        return
    words = path.read_text(encoding="utf-8", errors="replace").strip().split(",")
    if len(words) != 3 or not all(word.strip().isdecimal() for word in words):
        raise UserError(f"{path} is not num_classes,height,width")
    if largest >= int(words[0]):
        raise UserError(
            f"{path} says {words[0]} classes, but a record has the label {largest}; does it belong "
            "to another file?"
        )
