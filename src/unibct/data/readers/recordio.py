"""Reader of RecordIO, MXNet's container for images: ``train.rec``, ``train.idx`` and ``property``.

First the byte layout, see ``docs/formats.md``. A part is a magic number, a word with flag and
length, the data, and zeros up to a multiple of four bytes. A record is one part, or several if the
magic number occurs in its content. Then the sets in InsightFace's layout, such as MS1Mv3.
"""

import hashlib
import io
import mmap
import os
import struct
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import CLASSES_FILE, ImageSet, encoded_set, file_stamp, names_of_numbers
from unibct.errors import UserError

MAGIC = 0xCED7230A
HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
_PART = struct.Struct("<II")  # magic; flag and length
_PART_AND_FLAG = struct.Struct("<III")  # the same, and the flag of the record's header
_HEAD_BYTES = _PART.size + HEADER.size
_LENGTH_MASK = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_HEAD_WORDS = 9  # magic; flag and length; the six words of the header; the first label after it
_HEADS_AT_ONCE = 1 << 16


class DamagedRecordError(UnreadableImageError):
    """Raised if the bytes at an offset of a RecordIO file are not a complete record."""


class Record(NamedTuple):
    """The content of a record."""

    labels: NDArray[np.float32]  # the one in the header, or those that follow it
    flag: int  # how many labels follow the header; 0 if the label is in it
    payload: bytes  # an encoded image, or nothing


class Heads(NamedTuple):
    """(records,) each: what is known of many records without reading the images."""

    length: NDArray[np.int64]  # bytes of the content
    flag: NDArray[np.uint32]  # as in ``Record``
    label: NDArray[np.float32]  # the first one


class RecordFile:
    """A RecordIO file with random access through a memory map, from any thread or process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size = path.stat().st_size
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        self._map: mmap.mmap | None = None
        self._process = -1

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_map": None, "_process": -1}

    @property
    def data(self) -> mmap.mmap:
        """The bytes of the file. Each process has its own memory map."""
        if self._map is None or self._process != os.getpid():
            with self.path.open("rb") as file:
                try:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except ValueError as error:
                    raise DamagedRecordError(f"{self.path} is empty") from error
            self._process = os.getpid()
        if len(self._map) != self.size:
            raise DamagedRecordError(
                f"{self.path} has {len(self._map)} bytes and had {self.size} when it was opened; "
                "start again when nothing writes to it any more"
            )
        return self._map

    def read(self, offset: int) -> bytes:
        """Return the content of the record at ``offset``."""
        return self._read(offset)[0]

    def record(self, offset: int) -> Record:
        """Return the record at ``offset``, parsed."""
        return parse_record(self.read(offset), f"{self.path}, offset {offset}")

    def payload(self, offset: int) -> bytes:
        """Return what follows header and labels in the record at ``offset``."""
        if 0 <= offset <= self.size - _PART_AND_FLAG.size:
            magic, word, flag = _PART_AND_FLAG.unpack_from(self.data, offset)
            begin, end = offset + _HEAD_BYTES + 4 * flag, offset + _PART.size + word
            if magic == MAGIC and word <= _LENGTH_MASK and begin <= end <= self.size:
                return self.data[begin:end]  # the fast path: a record of one part
        return self.record(offset).payload  # several parts, or damaged

    def scan(self) -> Iterator[int]:
        """Yield the offset of each record from first to last, for files without an index."""
        offset = 0
        while offset < self.size:
            yield offset
            offset = self._read(offset)[1]

    def heads(self, offsets: NDArray[np.int64]) -> Heads:
        """Return the heads of the records at ``offsets``, without reading the images."""
        for offset in offsets[(offsets < 0) | (offsets > self.size - _PART.size)].tolist():
            self._part(offset, offset)  # raises the error
        words = self._head_words(offsets)
        parts, length = words[:, 1] >> 29, (words[:, 1] & _LENGTH_MASK).astype(np.int64)
        is_cut = offsets + _PART.size + length > self.size
        for offset in offsets[(words[:, 0] != MAGIC) | (parts > _FIRST) | is_cut].tolist():
            self.read(offset)  # raises an error that says what is wrong
        flag = words[:, 2].copy()
        label = np.where(flag == 0, words[:, 3], words[:, 8]).view(np.float32).copy()
        is_short = (parts == _FIRST) | (length < HEADER.size + 4 * flag.astype(np.int64))
        for row in np.flatnonzero(is_short):  # maybe split inside the header, or damaged
            content = self.read(int(offsets[row]))
            record = parse_record(content, f"{self.path}, offset {offsets[row]}")
            length[row], flag[row], label[row] = len(content), record.flag, record.labels[0]
        return Heads(length, flag, label)

    def _head_words(self, offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return (records, 9) words at ``offsets``; what is past the file's end means nothing."""
        data = np.frombuffer(self.data, dtype=np.uint8)
        words = np.zeros((len(offsets), _HEAD_WORDS), dtype=np.uint32)
        order = np.argsort(offsets, kind="stable")  # reads the file from beginning to end
        for start in range(0, len(order), _HEADS_AT_ONCE):
            rows = order[start : start + _HEADS_AT_ONCE]
            places = offsets[rows, None] + np.arange(4 * _HEAD_WORDS)
            words[rows] = data[np.minimum(places, self.size - 1)].view("<u4")
        return words

    def _read(self, offset: int) -> tuple[bytes, int]:
        """Return the content of a record and the offset of its end."""
        pieces: list[bytes] = []
        place = offset
        while True:
            flag, length = self._part(place, offset)
            if flag in (_MIDDLE, _LAST) and not pieces:
                name = "a middle part" if flag == _MIDDLE else "a last part"
                raise self._damage(place, f"begins with {name} of a record")
            if flag in (_WHOLE, _FIRST) and pieces:
                raise self._damage(place, f"breaks off the record that began at {offset}")
            begin = place + _PART.size
            pieces.append(self.data[begin : begin + length])
            place = begin + -(-length // 4) * 4
            if flag in (_WHOLE, _LAST):
                return struct.pack("<I", MAGIC).join(pieces), place

    def _part(self, place: int, record: int) -> tuple[int, int]:
        """Return flag and length of the part at ``place`` of the record at ``record``."""
        if place < 0 or place + _PART.size > self.size:
            where = "" if place == record else f" (of the record that began at {record})"
            raise self._damage(place, f"is past the end of the file{where}")
        magic, word = _PART.unpack_from(self.data, place)
        if magic != MAGIC:
            raise self._damage(place, f"has 0x{magic:08x} where the magic 0x{MAGIC:08x} must be")
        flag, length = word >> 29, word & _LENGTH_MASK
        if flag > _LAST:
            raise self._damage(place, f"has the unknown part flag {flag}")
        remaining = self.size - place - _PART.size
        if length > remaining:
            raise self._damage(place, f"says {length} bytes but the file has {remaining} more")
        return flag, length

    def _damage(self, place: int, what: str) -> DamagedRecordError:
        return DamagedRecordError(f"{self.path} is damaged: offset {place} {what}")


def parse_record(content: bytes, name: str) -> Record:
    """Parse the content of a record into labels and payload; ``name`` is for error messages."""
    if len(content) < HEADER.size:
        raise DamagedRecordError(
            f"{name}: the record has {len(content)} bytes, and its header alone takes {HEADER.size}"
        )
    flag, label, _, _ = HEADER.unpack_from(content)
    if flag == 0:
        return Record(np.array([label], dtype=np.float32), 0, content[HEADER.size :])
    end = HEADER.size + 4 * flag
    if len(content) < end:
        raise DamagedRecordError(
            f"{name}: the header announces {flag} labels, and {len(content) - HEADER.size} bytes "
            "follow"
        )
    labels = np.frombuffer(content, dtype="<f4", count=flag, offset=HEADER.size)
    return Record(labels, flag, content[end:])


def pack_record(payload: bytes, labels: float | list[float], key: int) -> bytes:
    """Return the content of a record: header, the labels if there are several, and payload."""
    if isinstance(labels, list):
        label_bytes = np.asarray(labels, dtype="<f4").tobytes()
        return HEADER.pack(len(labels), 0.0, key, 0) + label_bytes + payload
    return HEADER.pack(0, labels, key, 0) + payload


def write_record(file: BinaryIO, content: bytes) -> int:
    """Append a record and return its offset.

    It is split where its content has the magic at a multiple of four bytes.
    """
    offset = file.tell()
    words = np.frombuffer(content, dtype="<u4", count=len(content) // 4)
    splits: list[int] = (4 * np.flatnonzero(words == MAGIC)).tolist()
    begins, ends = [0, *(place + 4 for place in splits)], [*splits, len(content)]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        is_last = number == len(splits)
        flag = (_WHOLE if is_last else _FIRST) if number == 0 else (_LAST if is_last else _MIDDLE)
        length = end - begin
        if length > _LENGTH_MASK:
            raise UserError(f"a record of {length} bytes is too long for RecordIO")
        file.write(_PART.pack(MAGIC, flag << 29 | length))
        file.write(content[begin:end])
        file.write(bytes(-length % 4))
    return offset


def read_index(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys and offsets of an index file of lines ``key<tab>offset``, sorted by key."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as an index: {error}") from error
    line_count = sum(1 for line in io.StringIO(text) if line.strip())
    with warnings.catch_warnings():  # NumPy warns, or raises, at text that is not a number
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers = np.fromstring(text, dtype=np.int64, sep=" ")
        except (ValueError, DeprecationWarning):
            raise _index_error(path, text) from None
    if len(numbers) != 2 * line_count:
        raise _index_error(path, text)
    if not line_count:
        raise UserError(f"{path} lists no record")
    keys, offsets = numbers.reshape(-1, 2)[np.argsort(numbers[::2], kind="stable")].T
    if keys[0] < 0:
        raise UserError(f"{path} lists key {keys[0]}; keys count from 0 up")
    repeated = np.flatnonzero(np.diff(keys) == 0)
    if len(repeated):
        raise UserError(f"{path} lists key {keys[repeated[0]]} twice")
    return keys, offsets


def _index_error(path: Path, text: str) -> UserError:
    """Return an error that shows the first line that is not ``key<tab>offset``."""
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if words and (len(words) != 2 or not all(w.lstrip("-").isdecimal() for w in words)):
            return UserError(f"{path}, line {number}: {line[:60]!r} is not key<tab>offset")
    return UserError(f"{path} is not an index of key<tab>offset lines")


SUFFIX = ".rec"
PROPERTY_FILE = "property"  # a line num_classes,height,width
_IDENTITY_FLAG = 2  # an identity's record has two labels and no image: a range of keys
_IDENTITY_BYTES = 32
_SOURCE_BYTES = 1 << 20  # at the beginning and at the end, that tell a file from others
_LARGEST_LABEL = 1 << 24  # above it float32 cannot tell neighbouring integers apart


@dataclass(frozen=True)
class RecordSource:
    """The encoded images in a RecordIO file; an id is ``class/key``."""

    file: RecordFile
    keys: NDArray[np.int64]  # (images,) sorted
    offsets: NDArray[np.int64]  # (images,) of each key's record

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
    return bool(_record_files(path)) if path.is_dir() else path.suffix == SUFFIX


def read(name: str) -> ImageSet:
    """Return all images of a RecordIO file, in the order of their keys. An id is ``class/key``.

    The class is the record's label. In InsightFace's layout there are also records of identities,
    which are not images; the record of key 0 tells that they exist. Without it every record is an
    image. Without an index file, the whole file is searched for records.
    """
    path = Path(name)
    if path.is_dir():
        files = _record_files(path)
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise UserError(f"{path} has {len(files)} RecordIO files ({names}); name one of them")
        if not files:
            raise UserError(f"{path} has no {SUFFIX} file")
        path = files[0]
    file = RecordFile(path)
    keys, offsets, float_labels = _image_records(file)
    is_whole = float_labels == np.floor(float_labels)
    is_class = (float_labels >= 0) & (float_labels <= _LARGEST_LABEL) & is_whole
    if not is_class.all():
        row = int(is_class.argmin())
        raise UserError(
            f"{path}: the record of key {keys[row]} has the label {float_labels[row]}; a "
            f"class is a whole number from 0 to {_LARGEST_LABEL}"
        )
    numbers, labels = np.unique(float_labels.astype(np.int64), return_inverse=True)
    _check_property(path.parent / PROPERTY_FILE, int(numbers[-1]))
    ids = tuple(f"{c}/{k}" for c, k in zip(numbers[labels].tolist(), keys.tolist(), strict=True))
    classes_file = path.parent / CLASSES_FILE
    class_names = names_of_numbers(classes_file, numbers.tolist())
    class_source = None if classes_file.is_file() else _class_source(file)
    source = RecordSource(file, keys, offsets)
    return encoded_set(name, ids, labels.astype(np.int64), class_names, source, class_source)


def _record_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())


def _image_records(
    file: RecordFile,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the keys, offsets and labels of the records that are images, sorted by key."""
    index = file.path.with_suffix(".idx")
    has_index = index.is_file()
    if has_index:
        keys, offsets = read_index(index)
    else:
        offsets = np.fromiter(file.scan(), dtype=np.int64)
        keys = np.arange(len(offsets), dtype=np.int64)
    try:
        heads = file.heads(offsets)
    except DamagedRecordError as error:
        if not has_index:
            raise
        raise UserError(f"{error}; is {index.name} the index of this file?") from error
    is_image = (heads.flag != _IDENTITY_FLAG) | (heads.length != _IDENTITY_BYTES)
    # The record of key 0 is written last, so in a file without an index it is the last one.
    has_identities = keys[0] == 0 and not is_image[0 if has_index else -1]
    if not has_identities:
        is_image[:] = True
    elif not has_index:
        keys = np.roll(keys, -1)  # 1, 2, …, 0: the ids are those that the index would give
    if not is_image.any():
        raise UserError(f"{file.path} holds no image")
    return keys[is_image], offsets[is_image], heads.label[is_image]


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
    """Raise an error if a label is too large for the property file, if there is one.

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
