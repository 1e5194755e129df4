"""Reader of WebDataset shards: tar files in which ``key.jpg`` and ``key.cls`` belong together.

Images and labels only: what else a sample has (also a pickle) is never opened.
"""

import json
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from unibct.data.decoding import SUFFIXES as IMAGE_SUFFIXES
from unibct.data.decoding import UnreadableImageError
from unibct.data.encoded_images import checked_id, classes_of, encoded_set, file_stamp
from unibct.data.image_set import ImageSet
from unibct.errors import UserError

SUFFIX = ".tar"
LABEL_SUFFIXES = (".cls", ".json")  # the first that a sample has counts
_MOST_LABEL_BYTES = 1 << 24
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class TarSource:
    """The bytes of images inside tar files.

    A file is opened for each image: there may be more shards than a process may hold open.
    """

    paths: tuple[Path, ...]
    places: dict[str, tuple[int, int, int]]  # id -> shard, offset, size

    def __call__(self, image_id: str) -> bytes:
        """An image's bytes."""
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
        """Of all shards."""
        return [file_stamp(path) for path in self.paths]


@dataclass
class _Sample:
    """The members of a shard that have the same key."""

    image: tuple[int, int] | None = None  # offset and size
    labels: dict[str, str | None] = field(default_factory=dict[str, str | None])  # by suffix

    @property
    def label(self) -> str | None:
        """What the first of the label's members says that is there."""
        return next((self.labels[s] for s in LABEL_SUFFIXES if self.labels.get(s)), None)


def is_shards(name: str) -> bool:
    """Whether a name is a tar file, a pattern of tar files, or a folder of them."""
    return name.endswith(SUFFIX) or any(p.is_file() for p in Path(name).glob(f"*{SUFFIX}"))


def read_shards(name: str) -> ImageSet:
    """All images of tar files, shard by shard; an id is ``shard/key``.

    A sample's label is in ``key.cls`` (a number or a word) or, under ``label``, ``cls`` or
    ``class``, in ``key.json``. ``shards-{000..012}.tar`` names several files.
    """
    paths = shard_paths(name)
    places: dict[str, tuple[int, int, int]] = {}
    words: list[str] = []
    for number, path in enumerate(paths):
        for key, sample in _samples(path).items():
            image_id = checked_id(f"{path.stem}/{key}")
            if sample.image is None:
                continue
            if sample.label is None:
                raise UserError(
                    f"{path}: sample {key!r} has an image but no label; add {key}.cls, or a "
                    f"{key}.json whose label is a whole number or a word"
                )
            if image_id in places:
                raise UserError(f"{name}: two shards have the sample {image_id!r}; rename a shard")
            places[image_id] = (number, *sample.image)
            words.append(sample.label)
    if not places:
        raise UserError(f"{name} holds no image: a sample is key.jpg and key.cls")
    names, labels = classes_of(words)
    return encoded_set(name, tuple(places), labels, names, TarSource(tuple(paths), places))


def shard_paths(name: str) -> list[Path]:
    """The tar files that a name stands for, in order."""
    path = Path(name)
    if path.is_dir():
        return sorted(found for found in path.glob(f"*{SUFFIX}") if found.is_file())
    found = _RANGE.search(name)
    if found is None:
        if not path.is_file():
            raise UserError(f"{name} is not there")
        return [path]
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    paths = [
        Path(f"{name[: found.start()]}{number:0{len(first)}}{name[found.end() :]}")
        for number in numbers
    ]
    missing = [p for p in paths if not p.is_file()]
    if missing or not paths:
        what = f"{missing[0]} is not there" if missing else "it counts down"
        raise UserError(f"{name} names {len(paths)} files, but {what}")
    return paths


def _samples(path: Path) -> dict[str, _Sample]:
    """The samples of a shard by their keys."""
    found: dict[str, _Sample] = {}
    size = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                plain = member.isfile() and not member.issparse()
                if member.size < 0 or (plain and member.offset_data + member.size > size):
                    raise UserError(f"{path} is cut off within {member.name!r}; copy it again")
                key, suffix = _key_and_suffix(member.name)
                if suffix not in (*IMAGE_SUFFIXES, *LABEL_SUFFIXES) or member.isdir():
                    continue
                if not plain:
                    raise UserError(
                        f"{path}: {member.name!r} is a link or the like; pack the file itself"
                    )
                sample = found.setdefault(key, _Sample())
                if suffix in IMAGE_SUFFIXES:
                    if sample.image is not None:
                        raise UserError(f"{path}: sample {key!r} has two images")
                    sample.image = (member.offset_data, member.size)
                else:
                    if suffix in sample.labels:
                        raise UserError(f"{path}: sample {key!r} has {member.name!r} twice")
                    sample.labels[suffix] = _read_label(tar, member, suffix, path)
            _require_end(path, tar.offset)
    except UserError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be read as an uncompressed tar file ({error}); copy it again"
        ) from error
    return found


def _key_and_suffix(name: str) -> tuple[str, str]:
    """A member's name up to the first dot of its last part, and the rest in small letters."""
    folder, slash, file = name.rpartition("/")
    stem, dot, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix.lower()}" if stem else ""


def _require_end(path: Path, offset: int) -> None:
    """Refuse a shard that goes on where no member could be read: ``tarfile`` stops silently."""
    with path.open("rb") as file:
        file.seek(offset)
        if any(file.read(tarfile.BLOCKSIZE)):
            raise UserError(f"{path} is damaged: offset {offset} is no tar header; copy it again")


def _read_label(
    tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, path: Path
) -> str | None:
    name = f"{path}: {member.name}"
    if member.size > _MOST_LABEL_BYTES:
        raise UserError(f"{name} has {member.size:,} bytes, which is too long for a label")
    extracted = tar.extractfile(member)
    assert extracted is not None
    label = _label(extracted.read(), suffix, name)
    if label is not None and (not label or any(mark in label for mark in "\n\r\0")):
        raise UserError(f"{name} is not one number or word")
    return label


def _label(data: bytes, suffix: str, name: str) -> str | None:
    """The label that a member holds, if it holds one."""
    try:
        text = data.decode("utf-8").strip()
        if suffix == ".cls":
            return text
        described: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} cannot be read as a label: {error}") from error
    if not isinstance(described, dict):
        return None
    entries = cast(dict[str, Any], described)
    for key in ("label", "cls", "class"):
        value = entries.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return None
