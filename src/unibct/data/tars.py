"""Reader of WebDataset shards: tar files in which ``key.jpg`` and ``key.cls`` belong together.

Images and labels only: what else a sample has (also a pickle) is never opened.
"""

import json
import mmap
import os
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from unibct.data.encoded import checked_id, classes_of, encoded_set
from unibct.data.images import SUFFIXES as IMAGE_SUFFIXES
from unibct.data.sets import ImageSet
from unibct.errors import UserError

SUFFIX = ".tar"
LABEL_SUFFIXES = (".cls", ".json")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class TarSource:
    """The bytes of images inside tar files, through memory maps that each process has its own."""

    paths: tuple[Path, ...]
    places: dict[str, tuple[int, int, int]]  # id -> shard, offset, size
    _maps: dict[tuple[int, int], mmap.mmap] = field(
        default_factory=dict[tuple[int, int], mmap.mmap], compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "places": self.places, "_maps": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __call__(self, image_id: str) -> bytes:
        """An image's bytes."""
        shard, offset, size = self.places[image_id]
        key = (os.getpid(), shard)
        if key not in self._maps:
            with self.paths[shard].open("rb") as file:
                self._maps[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[key][offset : offset + size]


def is_shards(name: str) -> bool:
    """Whether a name is a tar file, a pattern of tar files, or a folder of them."""
    return name.endswith(SUFFIX) or any(Path(name).glob(f"*{SUFFIX}"))


def read_shards(name: str) -> ImageSet:
    """All images of tar files, shard by shard; an id is ``shard/key``.

    A sample's label is in ``key.cls`` (a number or a word) or, under ``label``, ``cls`` or
    ``class``, in ``key.json``. ``shards-{000..012}.tar`` names several files.
    """
    paths = shard_paths(name)
    places: dict[str, tuple[int, int, int]] = {}
    words: list[str] = []
    for number, path in enumerate(paths):
        for key, (image, label) in _samples(path).items():
            image_id = checked_id(f"{path.stem}/{key}")
            if image is None:
                continue
            if label is None:
                raise UserError(
                    f"{path}: sample {key!r} has an image but no label; add {key}.cls, or a "
                    f"{key}.json with a label"
                )
            if image_id in places:
                raise UserError(f"{name}: two shards have the sample {image_id!r}; rename a shard")
            places[image_id] = (number, *image)
            words.append(label)
    if not places:
        raise UserError(f"{name} holds no image: a sample is key.jpg and key.cls")
    names, labels = classes_of(words)
    return encoded_set(name, tuple(places), labels, names, TarSource(tuple(paths), places))


def shard_paths(name: str) -> list[Path]:
    """The tar files that a name stands for, in order."""
    path = Path(name)
    if path.is_dir():
        return sorted(path.glob(f"*{SUFFIX}"))
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


def _samples(path: Path) -> dict[str, tuple[tuple[int, int] | None, str | None]]:
    """Key -> (offset and size of its image, its label)."""
    found: dict[str, tuple[tuple[int, int] | None, str | None]] = {}
    size = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if not member.isfile() or member.issparse():
                    continue
                if member.offset_data + member.size > size:
                    raise UserError(f"{path} is cut off within {member.name!r}; copy it again")
                folder, _, file = member.name.rpartition("/")
                stem, dot, suffix = file.partition(".")
                if not stem or not dot:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                image, label = found.get(key, (None, None))
                suffix = f".{suffix.lower()}"
                if suffix in IMAGE_SUFFIXES:
                    if image is not None:
                        raise UserError(f"{path}: sample {key!r} has two images")
                    image = (member.offset_data, member.size)
                elif suffix in LABEL_SUFFIXES:
                    extracted = tar.extractfile(member)
                    assert extracted is not None
                    label = _label(extracted.read(), suffix, f"{path}: {member.name}") or label
                else:
                    continue
                found[key] = (image, label)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as an uncompressed tar file ({error}); copy it again"
        ) from error
    return found


def _label(data: bytes, suffix: str, name: str) -> str | None:
    try:
        text = data.decode("utf-8").strip()
        if suffix == ".cls":
            if not text or "\n" in text:
                raise UserError(f"{name} is not one number or word")
            return text
        described: Any = json.loads(text)
    except ValueError as error:
        raise UserError(f"{name} cannot be read as a label: {error}") from error
    if not isinstance(described, dict):
        return None
    entries = cast(dict[str, Any], described)
    for key in ("label", "cls", "class"):
        value = entries.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return None
