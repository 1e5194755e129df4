"""One pass over the images of a set: which are readable, and a digest of the pixels of each."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unibct.data.checked_set import CheckedSet
from unibct.data.decoding import Frame, Pixels, UnreadableImageError, fit
from unibct.data.image_set import ImageSet
from unibct.data.read_ahead import reading_threads, results_ahead
from unibct.errors import UserError
from unibct.progress import Progress

if TYPE_CHECKING:
    from unibct.distributed.ranks import Ranks

DIGEST_BYTES = 16  # of the digest of an image's pixels
_IMAGES_PER_JOB = 256  # that a thread reads in one go when all images are read


def read_image(images: ImageSet, row: int, frame: Frame) -> Pixels:
    """Return the pixels of an image, brought into the form of ``frame``."""
    return fit(images.read(images.ids[row]), *frame)


def checked_set(
    images: ImageSet, pixel_digests: NDArray[np.uint8], problems: dict[int, str]
) -> CheckedSet:
    """Return the result of a pass over all images.

    Args:
        images: the set.
        pixel_digests: (images, 16) of each image; those of unreadable ones are ignored.
        problems: for each row whose image is unreadable, what is wrong with it.
    """
    problems = dict(sorted(problems.items()))
    readable = images
    if 0 < len(problems) < len(images):
        good_rows = np.setdiff1d(np.arange(len(images)), list(problems))
        readable, pixel_digests = images.select(good_rows), pixel_digests[good_rows]
    digest = hashlib.sha256(readable.digest.encode() + pixel_digests.tobytes())
    return CheckedSet(digest.hexdigest(), problems)


@dataclass(frozen=True)
class CheckedBatch:
    """Some images of a set, read for the first time.

    Attributes:
        rows: (readable images,) their rows in the set.
        pixels: (readable images, height, width, channels).
        pixel_digests: (readable images, 16).
        problems: for each row whose image is unreadable, what is wrong with it.
    """

    rows: NDArray[np.int64]
    pixels: Pixels
    pixel_digests: NDArray[np.uint8]
    problems: dict[int, str]


def checked_batches(
    images: ImageSet, rows: range, frame: Frame, batch_size: int
) -> Iterator[CheckedBatch]:
    """Read some images once, and yield pixels, digests and problems of each batch.

    Args:
        images: the set.
        rows: the images to read.
        frame: the form that they are brought into.
        batch_size: images in a batch, the unreadable ones included.
    """
    jobs = (
        partial(_checked_batch, images, rows[i : i + batch_size], frame)
        for i in range(0, len(rows), batch_size)
    )
    yield from results_ahead(jobs, reading_threads())


def _checked_batch(images: ImageSet, rows: range, frame: Frame) -> CheckedBatch:
    readable: dict[int, Pixels] = {}
    problems: dict[int, str] = {}
    for row in rows:
        try:
            readable[row] = read_image(images, row, frame)
        except UnreadableImageError as error:
            problems[row] = str(error)
    pixels = (
        np.stack(list(readable.values())) if readable else np.empty((0, *frame.shape), images.dtype)
    )
    digests = np.empty((len(readable), DIGEST_BYTES), dtype=np.uint8)
    for digest, image in zip(digests, pixels, strict=True):
        digest[:] = pixel_digest(image)
    return CheckedBatch(np.array(list(readable), dtype=np.int64), pixels, digests, problems)


def pixel_digest(pixels: Pixels) -> NDArray[np.uint8]:
    """Return (16,) a digest of an image's pixels."""
    digest = hashlib.blake2b(pixels.tobytes(), digest_size=DIGEST_BYTES).digest()
    return np.frombuffer(digest, dtype=np.uint8)


class Scan:
    """One pass over all images of a set.

    Attributes:
        pixels: (images, height, width, channels), or None if they need too much memory.
        problems: for each row whose image is unreadable, what is wrong with it.
    """

    def __init__(self, images: ImageSet, frame: Frame, *, keep: bool) -> None:
        self._images = images
        self._frame = frame
        self.pixels = np.empty((len(images), *frame.shape), dtype=images.dtype) if keep else None
        self.problems: dict[int, str] = {}
        # Each row has the digest of an image's pixels, and at the end a 1 if it is unreadable.
        # One array, so that ranks exchange it in one step.
        self._findings = np.zeros((len(images), DIGEST_BYTES + 1), dtype=np.uint8)

    def run(self, progress: Progress, ranks: "Ranks | None") -> CheckedSet:
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
                with ThreadPoolExecutor(reading_threads()) as pool:
                    for job, _ in zip(jobs, pool.map(self._read_rows, jobs), strict=True):
                        advance(len(job) * total // len(rows))
        if ranks is not None and shares_work:
            self._findings = ranks.summed_array(self._findings)
            for row in np.flatnonzero(self._findings[:, -1]).tolist():
                self.problems.setdefault(row, "found by another process")
        elif ranks is not None:
            self._require_same_findings(ranks)
        return checked_set(self._images, self._findings[:, :-1], self.problems)

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
            pixels = read_image(self._images, row, self._frame)
        except UnreadableImageError as error:
            self.problems[row] = str(error)
            self._findings[row, -1] = 1
            return
        self._findings[row, :-1] = pixel_digest(pixels)
        if self.pixels is not None:
            self.pixels[row] = pixels
