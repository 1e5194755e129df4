"""The samples in a WebDataset shard, in which ``key.jpg`` and ``key.cls`` are one sample.

This module reads every header of the tar file, and the labels. Other members of a sample, such as
pickles, are never opened.
"""

import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from unibct.data.decoding import SUFFIXES as IMAGE_SUFFIXES
from unibct.errors import UserError

LABEL_SUFFIXES = (".cls", ".json")  # if a sample has both, the first one counts
_MAX_LABEL_BYTES = 1 << 24


@dataclass(frozen=True)
class TarSample:
    """The members of a tar file that have the same key.

    Attributes:
        key: the name up to the first dot of its last part.
        image: offset and size of the encoded image in the tar file; None if there is no image.
        label: the class; None if there is none.
    """

    key: str
    image: tuple[int, int] | None
    label: str | None


@dataclass
class _Members:
    """What has been read of a sample so far."""

    image: tuple[int, int] | None = None  # offset and size
    labels: dict[str, str | None] = field(default_factory=dict[str, str | None])  # by suffix

    def sample(self, key: str) -> TarSample:
        label = next((self.labels[s] for s in LABEL_SUFFIXES if self.labels.get(s)), None)
        return TarSample(key, self.image, label)


def read_samples(path: Path) -> list[TarSample]:
    """Return the samples of a tar file, in the order of their first members."""
    samples: dict[str, _Members] = {}
    size = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                _add_member(samples, tar, member, path, size)
            _require_end(path, tar.offset)
    except UserError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be read as an uncompressed tar file ({error}); copy it again"
        ) from error
    return [members.sample(key) for key, members in samples.items()]


def is_label(text: str) -> bool:
    """Return whether ``text`` can be a label: one line, not empty."""
    return bool(text) and not any(mark in text for mark in "\n\r\0")


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
    key, suffix = _key_and_suffix(member.name)
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
        sample.labels[suffix] = _read_label(tar, member, suffix, path)


def _key_and_suffix(name: str) -> tuple[str, str]:
    """Split a member's name at the first dot of its last part; the suffix is in lower case."""
    folder, slash, file = name.rpartition("/")
    stem, dot, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix.lower()}" if stem else ""


def _require_end(path: Path, offset: int) -> None:
    """Raise an error if the tar file does not end at ``offset``.

    ``tarfile`` stops without an error at a header that it cannot read.
    """
    with path.open("rb") as file:
        file.seek(offset)
        if any(file.read(tarfile.BLOCKSIZE)):
            raise UserError(f"{path} is damaged: offset {offset} is no tar header; copy it again")


def _read_label(
    tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, path: Path
) -> str | None:
    name = f"{path}: {member.name}"
    if member.size > _MAX_LABEL_BYTES:
        raise UserError(f"{name} has {member.size:,} bytes, which is too long for a label")
    extracted = tar.extractfile(member)
    assert extracted is not None
    label = _parse_label(extracted.read(), suffix, name)
    if label is not None and not is_label(label):
        raise UserError(f"{name} is not one number or word")
    return label


def _parse_label(data: bytes, suffix: str, name: str) -> str | None:
    """Return the label in the bytes of a member, or None if a JSON file has none."""
    try:
        text = data.decode("utf-8").strip()
        if suffix == ".cls":
            return text
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} cannot be read as a label: {error}") from error
    if not isinstance(content, dict):
        return None
    entries = cast(dict[str, Any], content)
    for key in ("label", "cls", "class"):
        value = entries.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return None
