"""The first reading of an image set: which images are readable, and a digest of all pixels.

What it found is kept on disk, so that unchanged files are not decoded again: in the folder
``checked-sets`` of the user's cache (``~/.cache/unibct`` on Linux, or the folder in the environment
variable ``UNIBCT_CACHE``). A record is used as long as the files of the set have the same sizes and
modification times. Any record may be deleted; those that no run has used for months are.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.data import decoding
from unibct.data.decoding import (
    Frame,
    Pixels,
    UnreadableImageError,
    fit,
    reading_threads,
    results_ahead,
    unreadable_images_error,
)
from unibct.data.image_set import ImageSet, Stamped
from unibct.errors import UserError
from unibct.files import mark_used, remove_unused, user_cache_folder, write_json

if TYPE_CHECKING:
    from unibct.distributed.ranks import Ranks

_FORMAT = 1  # of a record on disk
DIGEST_BYTES = 16  # of the digest of an image's pixels
_IMAGES_PER_JOB = 256  # that a thread reads in one go when all images are read


class NoReadableImageError(UserError):
    """Raised if unreadable images are to be left out, and no other image is there."""

    def __init__(self, set_name: str, images: int) -> None:
        super().__init__(f"{set_name}: not one of its {images} images can be read")


@dataclass(frozen=True)
class CheckedSet:
    """What reading every image of a set once has found."""

    digest: str  # of the pixels, ids and classes of the readable images, and their order
    problems: dict[int, str]  # for each row whose image is unreadable, what is wrong with it

    def readable(self, images: ImageSet) -> ImageSet:
        """Return the readable images of the set that was checked.

        Whoever reads them from now on is refused if one of them has become unreadable.
        """
        if not self.problems:
            return replace(images, skip_bad=False) if images.skip_bad else images
        if not images.skip_bad:
            problems = [f"{images.ids[row]} ({text})" for row, text in self.problems.items()]
            raise unreadable_images_error(images.name, problems)
        good_rows = [row for row in range(len(images)) if row not in self.problems]
        if not good_rows:
            raise NoReadableImageError(images.name, len(images))
        names = ", ".join(self.unreadable_ids(images))
        count = len(self.problems)
        progress.note(f"left out {count} unreadable images of {images.name}: {names}")
        return replace(images.select(good_rows), skip_bad=False)

    def unreadable_ids(self, images: ImageSet) -> tuple[str, ...]:
        """Return the ids of the images that cannot be read."""
        return tuple(images.ids[row] for row in self.problems)


def source_stamp(images: ImageSet, image_ids: Sequence[str] | None = None) -> str | None:
    """Return a hash of the sizes and times of an image set's files; it changes if a file does.

    With ``image_ids``, only of the files of these images. None if changes cannot be detected,
    because the pixels do not come from files.
    """
    decodes_its_files = getattr(images.read, "encoded", None) is images.encoded
    if not decodes_its_files or not isinstance(images.encoded, Stamped):
        return None
    stamps = images.encoded.stamps(images.ids if image_ids is None else image_ids)
    digest = hashlib.sha256()
    for stamp in stamps:
        digest.update(f"{stamp}\n".encode())
    return digest.hexdigest()


def find_checked_set(images: ImageSet, frame: Frame, stamp: str | None) -> CheckedSet | None:
    """Return what an earlier check found, if the files have not changed since; otherwise None.

    ``stamp`` is the set's ``source_stamp`` now. Unreadable images are read again, because a network
    file system may have been the reason.
    """
    path = None if stamp is None else _record_path(images, frame)
    if path is None:
        return None
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT or record["stamp"] != stamp:
            return None
        pairs = cast(list[tuple[Any, Any]], record["problems"])
        checked = CheckedSet(record["digest"], {int(row): str(text) for row, text in pairs})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    is_whole = isinstance(record["digest"], str)
    if not is_whole or not all(0 <= row < len(images) for row in checked.problems):
        return None
    for row in checked.problems:
        with suppress(UnreadableImageError):
            read_image(images, row, frame)
            return None
    mark_used(path)
    return checked


def save_checked_set(
    images: ImageSet, frame: Frame, checked: CheckedSet, stamp: str | None
) -> None:
    """Keep what a check found, unless files changed meanwhile or the cache cannot be written.

    ``stamp`` is the set's ``source_stamp`` before its images were read.
    """
    path = None if stamp is None else _record_path(images, frame)
    if path is None or source_stamp(images) != stamp:
        return
    record = {"format": _FORMAT, "stamp": stamp, "digest": checked.digest}
    with suppress(OSError):
        write_json(path, record | {"problems": list(checked.problems.items())})
        remove_unused(path.parent)


def _record_path(images: ImageSet, frame: Frame) -> Path | None:
    """Return the file for the record of a set; None if there is no place for it."""
    folder = user_cache_folder()
    if folder is None:
        return None
    identity = [os.path.abspath(images.name), images.digest, frame, _decoder()]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    return folder / "checked-sets" / f"{name}.json"


@cache
def _decoder() -> list[str]:
    """Return what, besides the files, determines the pixels: our code and two libraries."""
    source = Path(decoding.__file__).read_bytes()
    versions = [metadata.version(name) for name in ("pillow", "simplejpeg")]
    return [hashlib.sha256(source).hexdigest(), *versions]


def read_image(images: ImageSet, row: int, frame: Frame) -> Pixels:
    """Return the pixels of an image, brought into the form of ``frame``."""
    return fit(images.read(images.ids[row]), *frame)


def checked_set(
    images: ImageSet, pixel_digests: NDArray[np.uint8], problems: dict[int, str]
) -> CheckedSet:
    """Return the result of a pass over all images.

    The digests are (images, 16); those of unreadable images are ignored.
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
    """Some images of a set, read for the first time."""

    rows: NDArray[np.int64]  # (readable images,) their rows in the set
    pixels: Pixels  # (readable images, height, width, channels)
    pixel_digests: NDArray[np.uint8]  # (readable images, 16)
    problems: dict[int, str]  # as in ``CheckedSet``


def checked_batches(
    images: ImageSet, rows: range, frame: Frame, batch_size: int, workers: int | None = None
) -> Iterator[CheckedBatch]:
    """Read some images once, and yield pixels, digests and problems of each batch.

    A batch has ``batch_size`` images, the unreadable ones included. So many threads read ahead, by
    default as many as read images anyway.
    """
    jobs = (
        partial(_checked_batch, images, rows[i : i + batch_size], frame)
        for i in range(0, len(rows), batch_size)
    )
    yield from results_ahead(jobs, reading_threads() if workers is None else workers)


def _checked_batch(images: ImageSet, rows: range, frame: Frame) -> CheckedBatch:
    good_rows: list[int] = []
    problems: dict[int, str] = {}
    pixels = np.empty((len(rows), *frame.shape), dtype=images.dtype)
    digests = np.empty((len(rows), DIGEST_BYTES), dtype=np.uint8)
    for row in rows:
        place = len(good_rows)
        try:
            pixels[place] = read_image(images, row, frame)
        except UnreadableImageError as error:
            problems[row] = str(error)
            continue
        digest = hashlib.blake2b(pixels[place].tobytes(), digest_size=DIGEST_BYTES).digest()
        digests[place] = np.frombuffer(digest, dtype=np.uint8)
        good_rows.append(row)
    count = len(good_rows)
    return CheckedBatch(np.array(good_rows, np.int64), pixels[:count], digests[:count], problems)


def scan_images(
    images: ImageSet, frame: Frame, *, keep: bool, ranks: "Ranks | None" = None
) -> tuple[CheckedSet, Pixels | None]:
    """Read all images of a set once; if the pixels are not kept, the ranks share the work.

    Returns what was found, and (images, height, width, channels) if the pixels are kept.
    """
    total = len(images)
    pixels = np.empty((total, *frame.shape), dtype=images.dtype) if keep else None
    problems: dict[int, str] = {}
    # Each row has the digest of an image's pixels, and at the end a 1 if it is unreadable. One
    # array, so that ranks exchange it in one step.
    findings = np.zeros((total, DIGEST_BYTES + 1), dtype=np.uint8)
    rows = range(total) if ranks is None or keep else ranks.share(total)
    with progress.task("reading images", total, weight=0.0) as advance:
        # Each job takes long enough to be worth a thread; few images are read by this one.
        workers = reading_threads() if len(rows) > _IMAGES_PER_JOB else 0
        for batch in checked_batches(images, rows, frame, _IMAGES_PER_JOB, workers):
            findings[batch.rows, :-1] = batch.pixel_digests
            findings[list(batch.problems), -1] = 1
            problems |= batch.problems
            if pixels is not None:
                pixels[batch.rows] = batch.pixels
            advance((len(batch.rows) + len(batch.problems)) * total // len(rows))
    if ranks is not None and not keep:
        findings = ranks.summed_array(findings)
        for row in np.flatnonzero(findings[:, -1]).tolist():
            problems.setdefault(row, "found by another process")
    elif ranks is not None:  # each rank has read all: their labels must fit together
        differs = (findings != ranks.broadcast_array(findings)).any(axis=1)
        differing = np.flatnonzero(ranks.summed_array(differs.astype(np.int64)))
        if len(differing):
            raise UserError(
                f"the processes do not read the same image {images.ids[differing[0]]}: its pixels "
                "differ, or not all of them can read it; give every machine the same files"
            )
    return checked_set(images, findings[:, :-1], problems), pixels
