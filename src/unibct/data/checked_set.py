"""What the check of an image set found, kept on disk so that unchanged files are not decoded again.

A record is in the folder ``checked-sets`` of the user's cache (``~/.cache/unibct`` on Linux, or the
folder in the environment variable ``UNIBCT_CACHE``). It is used as long as the files of the set
have the same sizes and modification times. Any record may be deleted.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from unibct.data import decoding
from unibct.data.decoding import Frame, UnreadableImageError, fit, unreadable_images_error
from unibct.data.image_set import ImageSet, Stamped
from unibct.errors import UserError
from unibct.files import user_cache_folder, write_json
from unibct.progress import Progress

_FORMAT = 1


class NoReadableImageError(UserError):
    """Raised if unreadable images are to be left out, and no other image is there."""

    def __init__(self, set_name: str, images: int) -> None:
        super().__init__(f"{set_name}: not one of its {images} images can be read")


@dataclass(frozen=True)
class CheckedSet:
    """What reading every image of a set once has found.

    Attributes:
        digest: a hash of the pixels, ids and classes of the readable images, and their order.
        problems: for each row whose image is unreadable, what is wrong with it.
    """

    digest: str
    problems: dict[int, str]

    def readable(
        self, images: ImageSet, *, skip_bad: bool, progress: Progress | None = None
    ) -> ImageSet:
        """Return the readable images.

        Args:
            images: the set that was checked.
            skip_bad: leave out unreadable images instead of raising an error.
            progress: is told what is left out.
        """
        if not self.problems:
            return images
        if not skip_bad:
            problems = [f"{images.ids[row]} ({text})" for row, text in self.problems.items()]
            raise unreadable_images_error(images.name, problems)
        good_rows = [row for row in range(len(images)) if row not in self.problems]
        if not good_rows:
            raise NoReadableImageError(images.name, len(images))
        if progress is not None:
            names = ", ".join(self.unreadable_ids(images))
            count = len(self.problems)
            progress.note(f"left out {count} unreadable images of {images.name}: {names}")
        return images.select(good_rows)

    def unreadable_ids(self, images: ImageSet) -> tuple[str, ...]:
        """Return the ids of the images that cannot be read."""
        return tuple(images.ids[row] for row in self.problems)


def source_stamp(images: ImageSet, image_ids: Sequence[str] | None = None) -> str | None:
    """Return a hash of the sizes and times of an image set's files; it changes if a file does.

    Args:
        images: the set.
        image_ids: look only at the files of these images; by default at those of all.

    Returns:
        None if changes cannot be detected, because the pixels do not come from files.
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

    Unreadable images are read again, because a network file system may have been the reason.

    Args:
        images: the set.
        frame: the form that the images are brought into.
        stamp: the set's ``source_stamp`` now.
    """
    path = None if stamp is None else _record_path(images, frame)
    if path is None or stamp is None:
        return None
    checked = _read_record(path, stamp, len(images))
    if checked is not None and all(_is_unreadable(images, row, frame) for row in checked.problems):
        return checked
    return None


def save_checked_set(
    images: ImageSet, frame: Frame, checked: CheckedSet, stamp: str | None
) -> None:
    """Keep what a check found, unless files changed meanwhile or the cache cannot be written.

    Args:
        images: the set.
        frame: the form that the images were brought into.
        checked: what was found.
        stamp: the set's ``source_stamp`` before its images were read.
    """
    path = None if stamp is None else _record_path(images, frame)
    if path is None or source_stamp(images) != stamp:
        return
    record = {"format": _FORMAT, "stamp": stamp, "digest": checked.digest}
    with suppress(OSError):
        write_json(path, record | {"problems": list(checked.problems.items())})


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


def _read_record(path: Path, stamp: str, images: int) -> CheckedSet | None:
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT or record["stamp"] != stamp:
            return None
        digest: Any = record["digest"]
        pairs = cast(list[tuple[Any, Any]], record["problems"])
        problems = {int(row): str(text) for row, text in pairs}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    is_whole = isinstance(digest, str) and all(0 <= row < images for row in problems)
    return CheckedSet(digest, problems) if is_whole else None


def _is_unreadable(images: ImageSet, row: int, frame: Frame) -> bool:
    try:
        fit(images.read(images.ids[row]), *frame)
    except UnreadableImageError:
        return True
    return False
