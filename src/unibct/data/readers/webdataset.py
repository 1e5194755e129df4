"""Reader of WebDataset shards: tar files in which ``key.jpg`` and ``key.cls`` are one sample.

Every header of a tar file is read, and the labels. Other members of a sample, such as pickles, are
never opened. What was found is kept in the user's cache, so that the next start does not search
the files again.
"""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from unibct.data.decoding import SUFFIXES as IMAGE_SUFFIXES
from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import (
    CLASSES_FILE,
    ImageSet,
    checked_id,
    classes_of,
    encoded_set,
    file_stamp,
    names_of_numbers,
    warn_of_passed_over,
)
from unibct.errors import UserError
from unibct.files import mark_used, remove_unused, user_cache_folder, write_text

SUFFIX = ".tar"
LABEL_SUFFIXES = (".cls", ".json")  # if a sample has both, the first one counts
_MAX_LABEL_BYTES = 1 << 24
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def recognises(name: str) -> bool:
    """Return whether ``name`` is a tar file, a pattern of tar files, or a folder with tar files."""
    return name.endswith(SUFFIX) or any(p.is_file() for p in Path(name).glob(f"*{SUFFIX}"))


def read(name: str) -> ImageSet:
    """Return all images of one or more tar files, shard by shard. An id is ``shard/key``.

    A sample's label is in ``key.cls`` (a number or a word), or in ``key.json`` under ``label``,
    ``cls`` or ``class``. ``classes.txt`` beside the files, if it is there, names the numbers.
    ``shards-{000..012}.tar`` stands for several files. A key ends at the first dot of a name, as in
    WebDataset. A sample without an image is passed over, with a warning.
    """
    paths = _shard_paths(name)
    places: dict[str, tuple[int, int, int]] = {}
    label_words: list[str] = []
    without_image: list[str] = []
    for number, path in enumerate(paths):
        for sample in _indexed_samples(path):
            image_id = checked_id(f"{path.stem}/{sample.key}")
            if sample.image is None:
                without_image.append(image_id)
                continue
            if sample.label is None:
                raise UserError(
                    f"{path}: sample {sample.key!r} has an image but no label; add "
                    f"{sample.key}.cls, or a {sample.key}.json whose label is a whole number or "
                    "a word"
                )
            if image_id in places:
                raise UserError(f"{name}: two shards have the sample {image_id!r}; rename a shard")
            places[image_id] = (number, *sample.image)
            label_words.append(sample.label)
    if not places:
        raise UserError(
            f"{name} holds no image: a sample is key.jpg and key.cls, and a key has no dot"
        )
    reason = "a sample needs an image such as key.jpg, and a key ends at the first dot of a name"
    warn_of_passed_over(name, without_image, reason)
    class_names, labels = classes_of(label_words)
    classes_file = paths[0].parent / CLASSES_FILE
    if classes_file.is_file() and all(name.isdecimal() for name in class_names):
        class_names = names_of_numbers(classes_file, [int(name) for name in class_names])
    return encoded_set(name, tuple(places), labels, class_names, TarSource(tuple(paths), places))


def _shard_paths(name: str) -> list[Path]:
    """Return the tar files that ``name`` stands for, sorted."""
    path = Path(name)
    if path.is_dir():
        return sorted(file for file in path.glob(f"*{SUFFIX}") if file.is_file())
    number_range = _RANGE.search(name)
    if number_range is None:
        if not path.is_file():
            raise UserError(f"{name} is not there")
        return [path]
    first, last = number_range.groups()
    prefix, suffix = name[: number_range.start()], name[number_range.end() :]
    numbers = range(int(first), int(last) + 1)
    paths = [Path(f"{prefix}{number:0{len(first)}}{suffix}") for number in numbers]
    missing = [p for p in paths if not p.is_file()]
    if missing or not paths:
        problem = f"{missing[0]} is not there" if missing else "it counts down"
        raise UserError(f"{name} names {len(paths)} files, but {problem}")
    return paths


@dataclass(frozen=True)
class TarSource:
    """The encoded images in tar files.

    A tar file is opened for each image, because there may be more shards than a process may have
    open files.
    """

    paths: tuple[Path, ...]
    places: dict[str, tuple[int, int, int]]  # by id: the shard's index, offset in it, and size

    def __call__(self, image_id: str) -> bytes:
        """Return the bytes of an image."""
        shard, offset, size = self.places[image_id]
        try:
            with self.paths[shard].open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise UnreadableImageError(f"{self.paths[shard]}: {error.strerror}") from error
        if len(data) != size:
            raise UnreadableImageError(f"{self.paths[shard]} is shorter than when it was opened")
        return data

    def stamps(self, image_ids: Sequence[str]) -> list[str]:
        """Return the stamp of each shard."""
        return [file_stamp(path) for path in self.paths]


class TarSample(NamedTuple):
    """The members of a tar file that have the same key."""

    key: str  # the name up to the first dot of its last part
    image: tuple[int, int] | None  # offset and size of the encoded image in the tar file
    label: str | None


@dataclass
class _Members:
    """What has been read of a sample so far."""

    image: tuple[int, int] | None = None
    labels: dict[str, str | None] = field(default_factory=dict[str, str | None])  # by suffix


def _read_samples(path: Path) -> list[TarSample]:
    """Return the samples of a tar file, in the order of their first members."""
    samples: dict[str, _Members] = {}
    size = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                _add_member(samples, tar, member, path, size)
            end = tar.offset
        with path.open("rb") as file:
            file.seek(end)
            # ``tarfile`` stops without an error at a header that it cannot read.
            if any(file.read(tarfile.BLOCKSIZE)):
                raise UserError(f"{path} is damaged: offset {end} is no tar header; copy it again")
    except UserError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be read as an uncompressed tar file ({error}); copy it again"
        ) from error
    return [
        TarSample(key, known.image, next(filter(None, map(known.labels.get, LABEL_SUFFIXES)), None))
        for key, known in samples.items()
    ]


def _add_member(
    samples: dict[str, _Members],
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: Path,
    tar_size: int,
) -> None:
    """Add an image or a label to its sample; ignore other members."""
    is_plain_file = member.isfile() and not member.issparse()
    if member.size < 0 or (is_plain_file and member.offset_data + member.size > tar_size):
        raise UserError(f"{path} is cut off within {member.name!r}; copy it again")
    folder, slash, file = member.name.rpartition("/")
    stem, dot, rest = file.partition(".")
    key, suffix = f"{folder}{slash}{stem}", f"{dot}{rest.lower()}" if stem else ""
    if suffix not in (*IMAGE_SUFFIXES, *LABEL_SUFFIXES) or member.isdir():
        if suffix.endswith(IMAGE_SUFFIXES):  # as key.seg.png beside key.jpg, or with nothing beside
            samples.setdefault(key, _Members())
        return
    if not is_plain_file:
        raise UserError(f"{path}: {member.name!r} is not a plain file; pack the file itself")
    sample = samples.setdefault(key, _Members())
    if suffix in IMAGE_SUFFIXES:
        if sample.image is not None:
            raise UserError(f"{path}: sample {key!r} has two images")
        sample.image = (member.offset_data, member.size)
    else:
        if suffix in sample.labels:
            raise UserError(f"{path}: sample {key!r} has {member.name!r} twice")
        sample.labels[suffix] = _read_label(tar, member, suffix, f"{path}: {member.name}")


def _read_label(
    tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, name: str
) -> str | None:
    """Return the label in a member, or None if a JSON file has none; ``name`` is for errors."""
    if member.size > _MAX_LABEL_BYTES:
        raise UserError(f"{name} has {member.size:,} bytes, which is too long for a label")
    extracted = tar.extractfile(member)
    assert extracted is not None
    try:
        text = extracted.read().decode("utf-8").strip()
        content: Any = {"cls": text} if suffix == ".cls" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} cannot be read as a label: {error}") from error
    if not isinstance(content, dict):
        return None
    for key in ("label", "cls", "class"):
        value = cast(dict[str, Any], content).get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            if not _is_label(str(value)):
                raise UserError(f"{name} is not one number or word")
            return str(value)
    return None


def _is_label(text: str) -> bool:
    """Return whether ``text`` can be a label: one line, not empty."""
    return bool(text) and not any(mark in text for mark in "\n\r\0")


# The index of a tar file is in the folder ``tar-index`` of the user's cache (``~/.cache/unibct`` on
# Linux, or the folder in the environment variable ``UNIBCT_CACHE``). Its name is a hash of the tar
# file's absolute path. It is used as long as the tar file has the same size and modification
# time. An index that is out of date or damaged is replaced, one that no run has used for months is
# removed, and any index may be deleted.
#
# The file has two lines of JSON: a header, which describes the tar file and contains the SHA-256
# of the second line, and a list of samples ``[key, offset, size, label]``.

_FORMAT = 3  # 2: with .jpe and .jfif; 3: with keys that have only images of other names


def _indexed_samples(path: Path) -> list[TarSample]:
    """Return the samples of a tar file: from its index, or else from the file itself."""
    folder = user_cache_folder()
    if folder is None:
        return _read_samples(path)
    header = _tar_header(path)
    name = hashlib.sha256(os.fsencode(header["tar"])).hexdigest()[:32]
    index = folder / "tar-index" / f"{name}.json"
    samples = _load_index(index, header)
    if samples is None:
        samples = _read_samples(path)
        if _tar_header(path) == header:  # it did not change while it was read
            rows = [[s.key, *(s.image or (None, None)), s.label] for s in samples]
            text = json.dumps(rows)  # ASCII: a key may be a name that UTF-8 cannot encode
            with suppress(OSError):
                write_text(index, f"{json.dumps(header | _checksum(text))}\n{text}\n")
                remove_unused(index.parent)
    else:
        mark_used(index)
    return samples


def _tar_header(path: Path) -> dict[str, Any]:
    """Return what identifies a tar file and its content."""
    status = path.stat()
    stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    return {"format": _FORMAT, "tar": os.path.abspath(path), **stamp}


def _checksum(text: str) -> dict[str, str]:
    return {"sha256": hashlib.sha256(text.encode("ascii")).hexdigest()}


def _load_index(index: Path, header: dict[str, Any]) -> list[TarSample] | None:
    """Return the samples in an index; None if there is no index for this state of the tar file."""
    try:
        header_text, _, text = index.read_text(encoding="ascii").removesuffix("\n").partition("\n")
        if json.loads(header_text) != header | _checksum(text):
            return None
        rows: Any = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(rows, list):
        return None
    samples = [_checked_sample(row, header["size"]) for row in cast(list[Any], rows)]
    complete = [sample for sample in samples if sample is not None]
    has_all = len({sample.key for sample in complete}) == len(samples)
    return complete if has_all else None


def _checked_sample(row: Any, tar_size: int) -> TarSample | None:
    """Return the sample in a row of an index; None if it is not one that the tar file can have."""
    match row:
        case [str(key), int(offset), int(size), str() | None as label]:
            if offset < 0 or size < 0 or offset + size > tar_size:
                return None
            image = (offset, size)
        case [str(key), None, None, str() | None as label]:
            image = None
        case _:
            return None
    return TarSample(key, image, label) if label is None or _is_label(label) else None
