"""Reader of RecordIO sets such as MS1Mv3: ``train.rec``, ``train.idx`` and ``property``.

The byte layout of the files is in ``record_format``.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.data.encoded_images import CLASSES_FILE, encoded_set, file_stamp, names_of_numbers
from unibct.data.image_set import ImageSet
from unibct.data.readers.record_format import DamagedRecordError, RecordFile, read_index
from unibct.errors import UserError

SUFFIX = ".rec"
PROPERTY_FILE = "property"
_IDENTITY_FLAG = 2  # an identity's record has two labels and no image: a range of keys
_IDENTITY_BYTES = 32
_SOURCE_BYTES = 1 << 20  # at the beginning and at the end, that tell a file from others
_LARGEST_LABEL = 1 << 24  # above it float32 cannot tell neighbouring integers apart


@dataclass(frozen=True)
class RecordSource:
    """The encoded images in a RecordIO file; an id is ``class/key``.

    Attributes:
        file: the file.
        keys: (images,) sorted.
        offsets: (images,) the offset of each key's record.
    """

    file: RecordFile
    keys: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __call__(self, image_id: str) -> bytes:
        """Return the bytes after the record's header and labels."""
        key, first_key = int(image_id.rpartition("/")[2]), int(self.keys[0])
        row = key - first_key
        if len(self.keys) <= int(self.keys[-1]) - first_key:  # the keys have gaps
            row = int(np.searchsorted(self.keys, key))
        return self.file.payload(int(self.offsets[row]))

    def stamps(self, image_ids: Sequence[str]) -> list[str]:
        """Return the stamp of the file, which has all images."""
        return [file_stamp(self.file.path)]


def recognises(name: str) -> bool:
    """Return whether ``name`` is a ``.rec`` file, or a folder with one."""
    path = Path(name)
    if path.is_dir():
        return any(record_file.is_file() for record_file in path.glob(f"*{SUFFIX}"))
    return path.suffix == SUFFIX


def read(name: str) -> ImageSet:
    """Return all images of a RecordIO file, in the order of their keys. An id is ``class/key``.

    The class is the record's label. In InsightFace's layout there are also records of identities,
    which are not images; the record of key 0 tells that they exist. Without it every record is an
    image. Without an index file, the whole file is searched for records.
    """
    file = RecordFile(_record_path(Path(name)))
    keys, offsets, float_labels = _image_records(file)
    is_class = (
        (float_labels >= 0)
        & (float_labels <= _LARGEST_LABEL)
        & (float_labels == np.floor(float_labels))
    )
    if not is_class.all():
        row = int(is_class.argmin())
        raise UserError(
            f"{file.path}: the record of key {keys[row]} has the label {float_labels[row]}; a "
            f"class is a whole number from 0 to {_LARGEST_LABEL}"
        )
    numbers, labels = np.unique(float_labels.astype(np.int64), return_inverse=True)
    _check_property(file.path.parent / PROPERTY_FILE, int(numbers[-1]))
    ids = tuple(f"{c}/{k}" for c, k in zip(numbers[labels].tolist(), keys.tolist(), strict=True))
    source = RecordSource(file, keys, offsets)
    classes_file = file.path.parent / CLASSES_FILE
    class_names = names_of_numbers(classes_file, numbers.tolist())
    class_source = None if classes_file.is_file() else _class_source(file)
    return encoded_set(name, ids, labels.astype(np.int64), class_names, source, class_source)


def _image_records(
    file: RecordFile,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the keys, offsets and labels of the records that are images, sorted by key."""
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
    is_identity = (heads.flag == _IDENTITY_FLAG) & (heads.length == _IDENTITY_BYTES)
    # The record of key 0 is written last, so in a file without an index it is the last one.
    key_0_row = 0 if index.is_file() else -1
    has_identities = bool(is_identity[key_0_row]) and (keys[0] == 0)
    if has_identities and not index.is_file():
        keys = np.roll(keys, -1)  # 1, 2, …, 0: the ids are those that the index would give
    is_image = ~is_identity if has_identities else np.ones(len(keys), dtype=bool)
    if not is_image.any():
        raise UserError(f"{file.path} holds no image")
    return keys[is_image], offsets[is_image], heads.label[is_image]


def _record_path(path: Path) -> Path:
    """Return the one RecordIO file of a folder, or the path itself if it is a file."""
    if not path.is_dir():
        return path
    files = sorted(p for p in path.glob(f"*{SUFFIX}") if p.is_file())
    if len(files) > 1:
        names = ", ".join(p.name for p in files)
        raise UserError(f"{path} has {len(files)} RecordIO files ({names}); name one of them")
    if not files:
        raise UserError(f"{path} has no {SUFFIX} file")
    return files[0]


def _class_source(file: RecordFile) -> str:
    """Return a name for a file without class names, whose class numbers mean something only there.

    A copy has the same name. The name depends on the size, the beginning and the end of the file,
    because reading all of it would take minutes.
    """
    digest = hashlib.sha256(f"{file.size}\n".encode())
    digest.update(file.data[:_SOURCE_BYTES])
    digest.update(file.data[-_SOURCE_BYTES:])
    return f"recordio-{digest.hexdigest()[:12]}"


def _check_property(path: Path, largest_label: int) -> None:
    """Raise an error if a label is too large for the file ``num_classes,height,width``.

    Some of the field's tools write further lines, which are ignored.
    """
    if not path.is_file():
        return
    first_line = path.read_text(encoding="utf-8", errors="replace").strip().partition("\n")[0]
    words = [word.strip() for word in first_line.split(",")]
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        raise UserError(f"{path} does not begin with a line num_classes,height,width")
    if largest_label >= int(words[0]):
        raise UserError(
            f"{path} says {words[0]} classes, but a record has the label {largest_label}; does it "
            "belong to another file?"
        )
