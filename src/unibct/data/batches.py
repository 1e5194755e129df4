"""Pixels of an image set in batches, decoded by threads, kept in memory where they fit."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.data.images import Pixels, UnreadableImageError, fit
from unibct.data.sets import ImageSet
from unibct.errors import UserError
from unibct.progress import Progress, Silent

MEMORY = 2 << 30  # bytes of pixels that are kept rather than decoded in every epoch
MEMORY_VARIABLE = "UNIBCT_PIXEL_MEMORY"  # another number of bytes, for this process
_AHEAD = 3  # batches decoded ahead of the one in use
_NAMED = 10  # unreadable images that an error names before it says "and n more"


@dataclass(frozen=True)
class PixelBatches:
    """The pixels of ``images``, each fitted to (height, width, channels).

    Attributes:
        images: the set, without unreadable images.
        unreadable: the ids of images that were left out.
        digest: changes with any image's pixels, id, class or place.
    """

    images: ImageSet
    height: int
    width: int
    channels: int
    unreadable: tuple[str, ...]
    digest: str
    _kept: Pixels | None

    def batches(self, order: NDArray[np.int64], batch_size: int) -> Iterator[Pixels]:
        """(batch, height, width, channels) for consecutive pieces of ``order``."""
        pieces = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        if self._kept is not None:
            for piece in pieces:
                yield self._kept[piece]
            return
        with ThreadPoolExecutor(_threads()) as pool:
            waiting: deque[list[Future[Pixels]]] = deque()
            for piece in pieces:
                waiting.append([pool.submit(self._read, int(i)) for i in piece])
                if len(waiting) > _AHEAD:
                    yield np.stack([future.result() for future in waiting.popleft()])
            for futures in waiting:
                yield np.stack([future.result() for future in futures])

    def _read(self, index: int) -> Pixels:
        try:
            return _read_fitted(self.images, index, self.height, self.width, self.channels)
        except UnreadableImageError as error:
            raise UserError(f"{self.images.ids[index]} cannot be read: {error}") from error


def unread_pixels(images: ImageSet, height: int, width: int, channels: int) -> PixelBatches:
    """The same without a look at any image: each is decoded when it is used, and not kept."""
    return PixelBatches(images, height, width, channels, (), images.digest, None)


def read_pixels(
    images: ImageSet,
    height: int,
    width: int,
    channels: int,
    *,
    skip_bad: bool = False,
    memory: int | None = None,
    progress: Progress | None = None,
) -> PixelBatches:
    """Decode every image once: find the unreadable ones, and keep the pixels if they fit.

    Args:
        images: the set.
        height: rows that the model takes.
        width: columns that it takes.
        channels: 1 or 3.
        skip_bad: leave unreadable images out instead of refusing.
        memory: bytes up to which the pixels are kept; by default 2 GiB, or what the environment
            variable UNIBCT_PIXEL_MEMORY says.
        progress: told of each image.
    """
    shape = (len(images), height, width, channels)
    memory = pixel_memory() if memory is None else memory
    kept = np.empty(shape, dtype=np.uint8) if int(np.prod(shape)) <= memory else None
    unreadable: dict[int, str] = {}
    digests: list[bytes] = [b""] * len(images)

    def read(index: int) -> None:
        try:
            pixels = _read_fitted(images, index, height, width, channels)
            digests[index] = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
            if kept is not None:
                kept[index] = pixels
        except UnreadableImageError as error:
            unreadable[index] = str(error)

    def read_all(indices: range) -> None:
        for index in indices:
            read(index)

    with (progress or Silent()).task("reading images", len(images), weight=0.0) as advance:
        if len(images) <= 256:
            read_all(range(len(images)))
            advance(len(images))
        else:
            pieces = [range(i, min(i + 256, len(images))) for i in range(0, len(images), 256)]
            with ThreadPoolExecutor(_threads()) as pool:
                for piece, _ in zip(pieces, pool.map(read_all, pieces), strict=True):
                    advance(len(piece))
    if not unreadable:
        digest = _digest(images, digests)
        return PixelBatches(images, height, width, channels, (), digest, kept)
    bad = sorted(unreadable)
    if not skip_bad:
        named = "; ".join(f"{images.ids[i]} ({unreadable[i]})" for i in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise UserError(
            f"{images.name} has {len(bad)} unreadable image{'s' if len(bad) > 1 else ''}: "
            f"{named}{more}. Mend or remove, or leave them out with --skip-bad-images"
        )
    good = np.setdiff1d(np.arange(len(images)), bad)
    if not len(good):
        raise UserError(f"{images.name}: not one of its {len(images)} images can be read")
    remaining = images.select(good)
    names = tuple(images.ids[i] for i in bad)
    if progress is not None:
        progress.note(f"left out {len(bad)} unreadable images of {images.name}: {', '.join(names)}")
    digest = _digest(remaining, [digests[i] for i in good])
    kept = None if kept is None else kept[good]
    return PixelBatches(remaining, height, width, channels, names, digest, kept)


def pixel_memory() -> int:
    """Bytes of pixels that this process may keep."""
    wanted = os.environ.get(MEMORY_VARIABLE, str(MEMORY))
    if not wanted.isdecimal():
        raise UserError(f"{MEMORY_VARIABLE}={wanted}: write a number of bytes")
    return int(wanted)


def _digest(images: ImageSet, pixel_digests: list[bytes]) -> str:
    return hashlib.sha256(images.digest.encode() + b"".join(pixel_digests)).hexdigest()


def _read_fitted(images: ImageSet, index: int, height: int, width: int, channels: int) -> Pixels:
    return fit(images.read(images.ids[index]), height, width, channels)


def _threads() -> int:
    wanted = os.environ.get("OMP_NUM_THREADS", "")  # fewer where processes share the cores
    return max(2, int(wanted) if wanted.isdecimal() else os.cpu_count() or 2)
