"""Batches of pixels: decoded by threads, and kept in memory if they fit."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from unibct.data.checked_set import (
    CheckedSet,
    find_checked_set,
    read_image,
    save_checked_set,
    scan_images,
    source_stamp,
)
from unibct.data.decoding import (
    VECTORS,
    Frame,
    Pixels,
    UnreadableImageError,
    reading_threads,
    results_ahead,
)
from unibct.data.image_set import ImageSet
from unibct.errors import UserError

if TYPE_CHECKING:
    from unibct.distributed.ranks import Ranks

MEMORY = 2 << 30  # bytes; pixels that need more are decoded in every epoch
MEMORY_VARIABLE = "UNIBCT_PIXEL_MEMORY"  # environment variable: another number of bytes

T = TypeVar("T")


@dataclass(frozen=True)
class PixelBatches:
    """The pixels of ``images``, each brought into the form of ``frame``."""

    images: ImageSet  # without unreadable images
    frame: Frame
    unreadable: tuple[str, ...]  # the ids of the images that were left out
    digest: str  # of all pixels, ids and classes and their order
    # (images, height, width, channels) if they fit into memory, and (images,) which of them have
    # been read: each is decoded when it is used for the first time.
    _in_memory: tuple[Pixels, NDArray[np.bool_]] | None

    def batches(self, order: NDArray[np.int64], batch_size: int) -> Iterator[Pixels]:
        """Yield (batch, height, width, channels) arrays for consecutive parts of ``order``."""
        parts = (order[i : i + batch_size] for i in range(0, len(order), batch_size))
        yield from self.prepared((rows, lambda pixels: pixels) for rows in parts)

    def prepared(
        self,
        jobs: Iterable[tuple[NDArray[np.int64], Callable[[Pixels], T]]],
        workers: int | None = None,
    ) -> Iterator[T]:
        """Yield the result of each job, in the order of the jobs.

        A job is rows and a function, which a thread calls with the rows' pixels. ``jobs`` is read a
        few jobs ahead. If a job needs random numbers, draw them in the iterable: the order in which
        the threads run is not fixed. So many ``workers`` read ahead, 0 for none; by default one
        thread per core, or none if the pixels are in memory.
        """
        if workers is None:
            all_read = self._in_memory is not None and bool(self._in_memory[1].all())
            workers = 0 if all_read else reading_threads()

        def call(rows: NDArray[np.int64], prepare: Callable[[Pixels], T]) -> T:
            return prepare(self._pixels(rows))

        yield from results_ahead((partial(call, *job) for job in jobs), workers)

    def _pixels(self, rows: NDArray[np.int64]) -> Pixels:
        if self._in_memory is None:
            return np.stack([self._read(row) for row in rows.tolist()])
        pixels, is_read = self._in_memory
        # Two threads may read the same image at the same time; they write the same pixels.
        for row in rows[~is_read[rows]].tolist():
            pixels[row] = self._read(row)
            is_read[row] = True
        return pixels[rows]

    def _read(self, row: int) -> Pixels:
        try:
            return read_image(self.images, row, self.frame)
        except UnreadableImageError as error:
            raise UserError(f"{self.images.ids[row]} cannot be read: {error}") from error


def unread_pixels(images: ImageSet, frame: Frame) -> PixelBatches:
    """Return batches of pixels without reading any image now: each is decoded when it is used."""
    return PixelBatches(images, frame, (), images.digest, None)


def read_pixels(
    images: ImageSet,
    frame: Frame,
    *,
    memory: int | None = None,
    ranks: "Ranks | None" = None,
) -> PixelBatches:
    """Check that every image is readable, or leave out the others, and keep the pixels if they fit.

    Each image is decoded once for this, unless an earlier call with the same set has done it and
    the files have not changed since.

    The pixels are kept if they need at most ``memory`` bytes; by default 2 GiB, or the number in
    the environment variable UNIBCT_PIXEL_MEMORY. ``ranks`` read the same set and share the work.
    """
    keep = fits_in_memory(len(images), frame, memory)
    stamp = source_stamp(images) if ranks is None or ranks.first else None
    checked, pixels = _known_check(images, frame, stamp, ranks), None
    is_known = checked is not None
    if checked is None:
        checked, pixels = scan_images(images, frame, keep=keep, ranks=ranks)
        save_checked_set(images, frame, checked, stamp)
    elif keep:
        pixels = np.empty((len(images), *frame.shape), dtype=images.dtype)
    readable = checked.readable(images)
    in_memory = None
    if pixels is not None:
        good_rows = np.setdiff1d(np.arange(len(images)), list(checked.problems))
        pixels = pixels[good_rows] if checked.problems else pixels
        in_memory = pixels, np.full(len(pixels), not is_known)
    return PixelBatches(readable, frame, checked.unreadable_ids(images), checked.digest, in_memory)


def _known_check(
    images: ImageSet, frame: Frame, stamp: str | None, ranks: "Ranks | None"
) -> CheckedSet | None:
    """Return what an earlier check of a set has found, as the first rank knows it.

    ``stamp`` is the set's ``source_stamp`` now; only the first rank's counts.
    """

    def question() -> tuple[str, list[tuple[int, str]]] | None:
        checked = find_checked_set(images, frame, stamp)
        return None if checked is None else (checked.digest, list(checked.problems.items()))

    answer = question() if ranks is None else ranks.ask_first(question)
    return None if answer is None else CheckedSet(answer[0], dict(answer[1]))


def fits_in_memory(images: int, frame: Frame, memory: int | None = None) -> bool:
    """Return whether the pixels of this many images may be kept; see ``read_pixels``."""
    value_bytes = 4 if frame.fit == VECTORS else 1  # finished vectors are float32
    needed = images * math.prod(frame.shape) * value_bytes
    return needed <= (pixel_memory() if memory is None else memory)


def pixel_memory() -> int:
    """Return how many bytes of pixels this process may keep in memory."""
    text = os.environ.get(MEMORY_VARIABLE, str(MEMORY))
    if not text.isdecimal():
        raise UserError(f"{MEMORY_VARIABLE}={text}: write a number of bytes")
    return int(text)
