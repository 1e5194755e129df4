"""An image set: ids, labels, and a way to read the pixels of each image."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels
from unibct.errors import UserError


class PixelSource(Protocol):
    """Reads the pixels of one image by its id."""

    def __call__(self, image_id: str) -> Pixels:
        """(height, width) or (height, width, 3), uint8; an ``UnreadableImageError`` if damaged."""
        ...


class EncodedSource(Protocol):
    """Reads the encoded bytes of one image by its id."""

    def __call__(self, image_id: str) -> bytes:
        """A PNG, JPEG or WebP file's bytes; an ``UnreadableImageError`` if they are not there."""
        ...


@runtime_checkable
class Stamped(Protocol):
    """An encoded source that can tell, without reading them, whether images have changed."""

    def stamps(self, image_ids: Sequence[str]) -> Iterable[str]:
        """What changes when one of the images does: size and time of the files they are in."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Images in a fixed order, each with an id and a class.

    Attributes:
        name: how the user named the set; used in messages.
        ids: one unique name per image, such as ``class/image.jpg``.
        labels: (images,) int64, indices into ``class_names``, without gaps.
        class_names: one per class.
        read: gives an image's pixels by its id.
        encoded: gives an image's encoded bytes by its id; None if it was never a file.
    """

    name: str
    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    read: PixelSource
    encoded: EncodedSource | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: NDArray[Any] | Sequence[int]) -> "ImageSet":
        """Some of the images; classes without an image go, the others keep their order."""
        rows: list[int] = np.asarray(indices, dtype=np.int64).tolist()
        kept, labels = np.unique(self.labels[rows], return_inverse=True)
        return ImageSet(
            self.name,
            tuple(self.ids[i] for i in rows),
            labels.astype(np.int64),
            tuple(self.class_names[int(c)] for c in kept),
            self.read,
            self.encoded,
        )

    @cached_property
    def position(self) -> dict[str, int]:
        """The index of each id."""
        return {image_id: i for i, image_id in enumerate(self.ids)}

    @cached_property
    def digest(self) -> str:
        """Changes with the images' ids, their order or their classes (not with their pixels)."""
        state = hashlib.sha256()
        for image_id, label in zip(self.ids, self.labels, strict=True):
            state.update(f"{image_id}\0{self.class_names[label]}\n".encode())
        return state.hexdigest()


def select_listed(images: ImageSet, list_file: Path) -> ImageSet:
    """The images that a list file names, one id per line (`unibct split` writes such lists)."""
    try:
        lines = list_file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(
            f"{list_file} cannot be read ({error.strerror}); make it with `unibct split`"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{list_file} is not a UTF-8 text file of image ids") from error
    indices: list[int] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        image_id = line.strip("\r\n")
        if not image_id:
            continue
        if image_id not in images.position:
            raise UserError(
                f"{list_file}, line {number}: {image_id!r} is not an image of {images.name}"
            )
        if image_id in seen:
            raise UserError(f"{list_file}, line {number}: {image_id!r} is listed twice")
        seen.add(image_id)
        indices.append(images.position[image_id])
    if not indices:
        raise UserError(f"{list_file} lists no image")
    return images.select(np.sort(np.asarray(indices)))
