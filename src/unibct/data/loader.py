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
class KeptPixels:
    """Pixels in memory, each image from the first time it is used on.

    Attributes:
        pixels: (images, height, width, channels).
        is_read: (images,) which of them have been read.
    """

    pixels: Pixels
    is_read: NDArray[np.bool_]

    def rows(self, rows: NDArray[np.int64], read: Callable[[int], Pixels]) -> Pixels:
        """Return the pixels of some images, and read those that are used for the first time.

        Two threads may read the same image at the same time; they write the same pixels.
        """
        for row in rows[~self.is_read[rows]].tolist():
            self.pixels[row] = read(row)
            self.is_read[row] = True
        return self.pixels[rows]


@dataclass(frozen=True)
class PixelBatches:
    """The pixels of ``images``, each brought into the form of ``frame``.

    Attributes:
        images: the set, without unreadable images.
        frame: height, width and channels of each image, and how it was fitted.
        unreadable: the ids of the images that were left out.
        digest: a hash of all pixels, ids and classes and their order.
    """

    images: ImageSet
    frame: Frame
    unreadable: tuple[str, ...]
    digest: str
    _in_memory: KeptPixels | None  # if they fit

    def batches(self, order: NDArray[np.int64], batch_size: int) -> Iterator[Pixels]:
        """Yield (batch, height, width, channels) arrays for consecutive parts of ``order``."""
        parts = (order[i : i + batch_size] for i in range(0, len(order), batch_size))
        yield from self.prepared((rows, _unchanged) for rows in parts)

    def prepared(
        self,
        jobs: Iterable[tuple[NDArray[np.int64], Callable[[Pixels], T]]],
        workers: int | None = None,
    ) -> Iterator[T]:
        """Yield the result of each job, in the order of the jobs.

        Args:
            jobs: pairs of rows and a function, which a thread calls with the rows' pixels. The
                iterable is read a few jobs ahead. If a job needs random numbers, draw them in the
                iterable: the order in which the threads run is not fixed.
            workers: threads that read ahead; 0 means that nothing is read ahead. By default one
                thread per core, or none if the pixels are in memory.
        """
        if workers is None:
            all_read = self._in_memory is not None and bool(self._in_memory.is_read.all())
            workers = 0 if all_read else reading_threads()
        calls = (partial(self._prepare, rows, prepare) for rows, prepare in jobs)
        yield from results_ahead(calls, workers)

    def _prepare(self, rows: NDArray[np.int64], prepare: Callable[[Pixels], T]) -> T:
        return prepare(self._pixels(rows))

    def _pixels(self, rows: NDArray[np.int64]) -> Pixels:
        if self._in_memory is not None:
            return self._in_memory.rows(rows, self._read)
        return np.stack([self._read(int(row)) for row in rows])

    def _read(self, row: int) -> Pixels:
        try:
            return read_image(self.images, row, self.frame)
        except UnreadableImageError as error:
            raise UserError(f"{self.images.ids[row]} cannot be read: {error}") from error


def _unchanged(pixels: Pixels) -> Pixels:
    return pixels


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

    Args:
        images: the set.
        frame: the form that the images are brought into.
        memory: keep the pixels if they need at most this many bytes; by default 2 GiB, or the
            number in the environment variable UNIBCT_PIXEL_MEMORY.
        ranks: the processes that read the same set and share the work.
    """
    keep = fits_in_memory(len(images), frame, memory)
    stamp = source_stamp(images) if ranks is None or ranks.first else None
    checked = known_check(images, frame, stamp, ranks)
    kept_pixels = None
    if checked is None:
        checked, pixels = scan_images(images, frame, keep=keep, ranks=ranks)
        save_checked_set(images, frame, checked, stamp)
        if pixels is not None:
            kept_pixels = KeptPixels(pixels, np.ones(len(images), dtype=np.bool_))
    elif keep:
        pixels = np.empty((len(images), *frame.shape), dtype=images.dtype)
        kept_pixels = KeptPixels(pixels, np.zeros(len(images), dtype=np.bool_))
    readable = checked.readable(images)
    if kept_pixels is not None and checked.problems:
        good_rows = np.setdiff1d(np.arange(len(images)), list(checked.problems))
        kept_pixels = KeptPixels(kept_pixels.pixels[good_rows], kept_pixels.is_read[good_rows])
    bad_ids = checked.unreadable_ids(images)
    return PixelBatches(readable, frame, bad_ids, checked.digest, kept_pixels)


def known_check(
    images: ImageSet, frame: Frame, stamp: str | None, ranks: "Ranks | None" = None
) -> CheckedSet | None:
    """Return what an earlier check of a set has found, as the first rank knows it.

    Args:
        images: the set.
        frame: the form that the images are brought into.
        stamp: the set's ``source_stamp`` now; only the first rank's counts.
        ranks: the processes that read the same set.
    """
    if ranks is None or ranks.world == 1:
        return find_checked_set(images, frame, stamp)

    def question() -> tuple[str, list[tuple[int, str]]] | None:
        checked = find_checked_set(images, frame, stamp)
        return None if checked is None else (checked.digest, list(checked.problems.items()))

    answer = ranks.ask_first(question)
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
