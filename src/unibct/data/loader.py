"""Pixels of an image set in batches, decoded by threads, kept in memory where they fit."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, UnreadableImageError, fit
from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.progress import Progress, Silent

if TYPE_CHECKING:
    from unibct.distributed.ranks import Ranks

MEMORY = 2 << 30  # bytes of pixels that are kept rather than decoded in every epoch
MEMORY_VARIABLE = "UNIBCT_PIXEL_MEMORY"  # another number of bytes, for this process
_DIGEST = 16  # bytes
_NAMED = 10  # unreadable images that an error names before it says "and n more"

T = TypeVar("T")


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
        pieces = (order[i : i + batch_size] for i in range(0, len(order), batch_size))
        yield from self.prepared((piece, _as_they_are) for piece in pieces)

    def prepared(
        self,
        jobs: Iterable[tuple[NDArray[np.int64], Callable[[Pixels], T]]],
        workers: int | None = None,
    ) -> Iterator[T]:
        """What each job makes of the pixels of its rows, in the order of the jobs.

        Args:
            jobs: rows, and what is done with their pixels, in a thread; taken up in order, a few
                ahead of the one in use. Random numbers are to be drawn here, not in the thread.
            workers: threads that read ahead; 0: none; by default one per core, and none if the
                pixels are in memory.
        """
        if workers is None:
            workers = 0 if self._kept is not None else _threads()
        if workers == 0:
            for rows, prepare in jobs:
                yield prepare(self._pixels(rows))
            return
        with ThreadPoolExecutor(workers) as pool:
            waiting: deque[Future[T]] = deque()
            try:
                for rows, prepare in jobs:
                    waiting.append(pool.submit(self._prepare, rows, prepare))
                    if len(waiting) > workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:  # whoever took the batches stopped early
                for future in waiting:
                    future.cancel()

    def _prepare(self, rows: NDArray[np.int64], prepare: Callable[[Pixels], T]) -> T:
        return prepare(self._pixels(rows))

    def _pixels(self, rows: NDArray[np.int64]) -> Pixels:
        if self._kept is not None:
            return self._kept[rows]
        return np.stack([self._read(int(row)) for row in rows])

    def _read(self, index: int) -> Pixels:
        try:
            return _read_fitted(self.images, index, self.height, self.width, self.channels)
        except UnreadableImageError as error:
            raise UserError(f"{self.images.ids[index]} cannot be read: {error}") from error


def _as_they_are(pixels: Pixels) -> Pixels:
    return pixels


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
    ranks: "Ranks | None" = None,
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
        ranks: processes that read the same set and divide the work.
    """
    shape = (len(images), height, width, channels)
    memory = pixel_memory() if memory is None else memory
    kept = np.empty(shape, dtype=np.uint8) if int(np.prod(shape)) <= memory else None
    unreadable: dict[int, str] = {}
    # Of each image a digest of its pixels, and at the end whether it cannot be read.
    looks = np.zeros((len(images), _DIGEST + 1), dtype=np.uint8)

    def read(index: int) -> None:
        try:
            pixels = _read_fitted(images, index, height, width, channels)
            digest = hashlib.blake2b(pixels.tobytes(), digest_size=_DIGEST).digest()
            looks[index, :-1] = np.frombuffer(digest, dtype=np.uint8)
            if kept is not None:
                kept[index] = pixels
        except UnreadableImageError as error:
            unreadable[index] = str(error)
            looks[index, -1] = 1

    def read_all(indices: range) -> None:
        for index in indices:
            read(index)

    # Pixels that are kept must be read by each rank; else each looks at its share.
    shared = ranks is not None and kept is None
    own = ranks.share(len(images)) if ranks is not None and shared else range(len(images))
    with (progress or Silent()).task("reading images", len(images), weight=0.0) as advance:
        if len(own) <= 256:
            read_all(own)
            advance(len(images))
        else:
            pieces = [own[i : i + 256] for i in range(0, len(own), 256)]
            with ThreadPoolExecutor(_threads()) as pool:
                for piece, _ in zip(pieces, pool.map(read_all, pieces), strict=True):
                    advance(len(piece) * len(images) // len(own))
    if ranks is not None and shared:
        looks = ranks.summed_array(looks)
        for index in np.flatnonzero(looks[:, -1]).tolist():
            unreadable.setdefault(index, "found by another process")
    digests = looks[:, :-1]
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
    digest = _digest(remaining, digests[good])
    kept = None if kept is None else kept[good]
    return PixelBatches(remaining, height, width, channels, names, digest, kept)


def pixel_memory() -> int:
    """Bytes of pixels that this process may keep."""
    wanted = os.environ.get(MEMORY_VARIABLE, str(MEMORY))
    if not wanted.isdecimal():
        raise UserError(f"{MEMORY_VARIABLE}={wanted}: write a number of bytes")
    return int(wanted)


def _digest(images: ImageSet, pixel_digests: NDArray[np.uint8]) -> str:
    return hashlib.sha256(images.digest.encode() + pixel_digests.tobytes()).hexdigest()


def _read_fitted(images: ImageSet, index: int, height: int, width: int, channels: int) -> Pixels:
    return fit(images.read(images.ids[index]), height, width, channels)


def _threads() -> int:
    cores = os.cpu_count() or 2
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    if processes.isdecimal():  # torchrun sets OMP_NUM_THREADS to 1, whatever the cores
        return max(2, cores // int(processes))
    wanted = os.environ.get("OMP_NUM_THREADS", "")  # fewer where processes share the cores
    return max(2, int(wanted) if wanted.isdecimal() else cores)
