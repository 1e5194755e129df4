"""Batches of pixels: decoded by threads, and kept in memory if they fit."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, UnreadableImageError, fit, unreadable_images_error
from unibct.data.image_set import ImageSet
from unibct.distributed.cpus import usable_cpus
from unibct.errors import UserError
from unibct.progress import Progress, Silent

if TYPE_CHECKING:
    from unibct.distributed.ranks import Ranks

MEMORY = 2 << 30  # bytes; pixels that need more are decoded in every epoch
MEMORY_VARIABLE = "UNIBCT_PIXEL_MEMORY"  # environment variable: another number of bytes
_DIGEST_BYTES = 16  # of the digest of an image's pixels
_IMAGES_PER_JOB = 256  # that a thread reads in one go when all images are read

T = TypeVar("T")


@dataclass(frozen=True)
class PixelBatches:
    """The pixels of ``images``, each resized to (height, width, channels).

    Attributes:
        images: the set, without unreadable images.
        height: rows of each image.
        width: columns of each image.
        channels: 1 or 3.
        unreadable: the ids of the images that were left out.
        digest: a hash of all pixels, ids and classes and their order.
    """

    images: ImageSet
    height: int
    width: int
    channels: int
    unreadable: tuple[str, ...]
    digest: str
    _in_memory: Pixels | None  # (images, height, width, channels), if they fit

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
            workers = 0 if self._in_memory is not None else _threads()
        if workers == 0:
            for rows, prepare in jobs:
                yield prepare(self._pixels(rows))
            return
        with ThreadPoolExecutor(workers) as pool:
            results: deque[Future[T]] = deque()
            try:
                for rows, prepare in jobs:
                    results.append(pool.submit(self._prepare, rows, prepare))
                    if len(results) > workers:
                        yield results.popleft().result()
                while results:
                    yield results.popleft().result()
            finally:  # the caller may stop early
                for result in results:
                    result.cancel()

    def _prepare(self, rows: NDArray[np.int64], prepare: Callable[[Pixels], T]) -> T:
        return prepare(self._pixels(rows))

    def _pixels(self, rows: NDArray[np.int64]) -> Pixels:
        if self._in_memory is not None:
            return self._in_memory[rows]
        return np.stack([self._read(int(row)) for row in rows])

    def _read(self, index: int) -> Pixels:
        try:
            return _read_image(self.images, index, (self.height, self.width, self.channels))
        except UnreadableImageError as error:
            raise UserError(f"{self.images.ids[index]} cannot be read: {error}") from error


def _unchanged(pixels: Pixels) -> Pixels:
    return pixels


def unread_pixels(images: ImageSet, height: int, width: int, channels: int) -> PixelBatches:
    """Return batches of pixels without reading any image now: each is decoded when it is used."""
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
    ranks: "Ranks | None" = None,
) -> PixelBatches:
    """Decode every image once, to find the unreadable ones, and keep the pixels if they fit.

    Args:
        images: the set.
        height: rows of the model's input.
        width: columns of the model's input.
        channels: 1 or 3.
        skip_bad: leave out unreadable images instead of raising an error.
        memory: keep the pixels if they need at most this many bytes; by default 2 GiB, or the
            number in the environment variable UNIBCT_PIXEL_MEMORY.
        progress: reports progress per image.
        ranks: the processes that read the same set and share the work.
    """
    memory = pixel_memory() if memory is None else memory
    scan = _Scan(images, (height, width, channels), memory)
    scan.run(progress or Silent(), ranks)
    bad_rows = sorted(scan.problems)
    if not bad_rows:
        digest = _set_digest(images, scan.pixel_digests)
        return PixelBatches(images, height, width, channels, (), digest, scan.pixels)
    if not skip_bad:
        problems = [f"{images.ids[row]} ({scan.problems[row]})" for row in bad_rows]
        raise unreadable_images_error(images.name, problems)
    good_rows = np.setdiff1d(np.arange(len(images)), bad_rows)
    if not len(good_rows):
        raise UserError(f"{images.name}: not one of its {len(images)} images can be read")
    bad_ids = tuple(images.ids[row] for row in bad_rows)
    if progress is not None:
        progress.note(
            f"left out {len(bad_ids)} unreadable images of {images.name}: {', '.join(bad_ids)}"
        )
    readable = images.select(good_rows)
    digest = _set_digest(readable, scan.pixel_digests[good_rows])
    pixels = None if scan.pixels is None else scan.pixels[good_rows]
    return PixelBatches(readable, height, width, channels, bad_ids, digest, pixels)


class _Scan:
    """One pass over all images of a set.

    Attributes:
        pixels: (images, height, width, channels), or None if they need too much memory.
        problems: for each row whose image is unreadable, what is wrong with it.
    """

    def __init__(self, images: ImageSet, size: tuple[int, int, int], memory: int) -> None:
        self._images = images
        self._size = size
        shape = (len(images), *size)
        self.pixels = np.empty(shape, dtype=np.uint8) if int(np.prod(shape)) <= memory else None
        self.problems: dict[int, str] = {}
        # Each row has the digest of an image's pixels, and at the end a 1 if it is unreadable.
        # One array, so that ranks exchange it in one step.
        self._findings = np.zeros((len(images), _DIGEST_BYTES + 1), dtype=np.uint8)

    @property
    def pixel_digests(self) -> NDArray[np.uint8]:
        """(images, 16) a digest of each image's pixels."""
        return self._findings[:, :-1]

    def run(self, progress: Progress, ranks: "Ranks | None") -> None:
        """Read all images; if the pixels are not kept, the ranks share the work."""
        total = len(self._images)
        # If the pixels are kept, each rank needs all of them.
        shares_work = ranks is not None and self.pixels is None
        rows = ranks.share(total) if ranks is not None and shares_work else range(total)
        with progress.task("reading images", total, weight=0.0) as advance:
            if len(rows) <= _IMAGES_PER_JOB:
                self._read_rows(rows)
                advance(total)
            else:
                jobs = [rows[i : i + _IMAGES_PER_JOB] for i in range(0, len(rows), _IMAGES_PER_JOB)]
                with ThreadPoolExecutor(_threads()) as pool:
                    for job, _ in zip(jobs, pool.map(self._read_rows, jobs), strict=True):
                        advance(len(job) * total // len(rows))
        if ranks is not None and shares_work:
            self._findings = ranks.summed_array(self._findings)
            for row in np.flatnonzero(self._findings[:, -1]).tolist():
                self.problems.setdefault(row, "found by another process")
        elif ranks is not None:
            self._require_same_findings(ranks)

    def _require_same_findings(self, ranks: "Ranks") -> None:
        """Refuse ranks that have read differently: their labels would not fit together."""
        differs = (self._findings != ranks.broadcast_array(self._findings)).any(axis=1)
        row = ranks.smallest_number(int(differs.argmax()) if differs.any() else len(differs))
        if row < len(differs):
            raise UserError(
                f"the processes do not read the same image {self._images.ids[row]}: its pixels "
                "differ, or not all of them can read it; give every machine the same files"
            )

    def _read_rows(self, rows: range) -> None:
        for row in rows:
            self._read(row)

    def _read(self, row: int) -> None:
        try:
            pixels = _read_image(self._images, row, self._size)
        except UnreadableImageError as error:
            self.problems[row] = str(error)
            self._findings[row, -1] = 1
            return
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=_DIGEST_BYTES).digest()
        self._findings[row, :-1] = np.frombuffer(digest, dtype=np.uint8)
        if self.pixels is not None:
            self.pixels[row] = pixels


def pixel_memory() -> int:
    """Return how many bytes of pixels this process may keep in memory."""
    text = os.environ.get(MEMORY_VARIABLE, str(MEMORY))
    if not text.isdecimal():
        raise UserError(f"{MEMORY_VARIABLE}={text}: write a number of bytes")
    return int(text)


def _set_digest(images: ImageSet, pixel_digests: NDArray[np.uint8]) -> str:
    return hashlib.sha256(images.digest.encode() + pixel_digests.tobytes()).hexdigest()


def _read_image(images: ImageSet, row: int, size: tuple[int, int, int]) -> Pixels:
    return fit(images.read(images.ids[row]), *size)


def _threads() -> int:
    """Return the number of threads that read images."""
    cores = usable_cpus()
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    if processes.isdecimal():  # torchrun sets OMP_NUM_THREADS to 1 on any number of cores
        return max(2, cores // int(processes))
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")  # smaller if processes share the cores
    return max(2, int(omp_threads) if omp_threads.isdecimal() else cores)
