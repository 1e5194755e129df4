"""Reader of identity folders: ``root/<class>/<image>``."""

import os
from pathlib import Path

import numpy as np

from unibct.data.images import SUFFIXES, Pixels, UnreadableImageError, decode
from unibct.data.sets import ImageSet
from unibct.errors import UserError


def read_folder(name: str) -> ImageSet:
    """All PNG, JPEG and WebP images in the class folders of ``name``, sorted by path.

    Hidden files and files of other types are passed over; a class folder without an image is an
    error, because it is more often a failed copy than a wish.
    """
    root = Path(name)
    if not root.is_dir():
        raise UserError(
            f"{name} is neither a folder root/<class>/<image> nor an embedded set "
            "(glyphs:train, glyphs:val, glyphs:test)"
        )
    classes = sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not classes:
        raise UserError(f"{name} has no class folders; the layout is root/<class>/<image>")
    ids: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        found = _image_names(root / class_name)
        if not found:
            raise UserError(
                f"class folder {root / class_name} has no PNG, JPEG or WebP image; "
                "add images or remove the folder (the layout is root/<class>/<image>)"
            )
        ids.extend(_checked_id(f"{class_name}/{name}") for name in found)
        labels.extend([label] * len(found))

    def read(image_id: str) -> Pixels:
        try:
            return decode((root / image_id).read_bytes())
        except OSError as error:
            raise UnreadableImageError(error.strerror or str(error)) from error

    return ImageSet(name, tuple(ids), np.asarray(labels, dtype=np.int64), tuple(classes), read)


def _checked_id(image_id: str) -> str:
    """An id must fit on one line of a UTF-8 list file."""
    if not image_id.isprintable() and any(mark in image_id for mark in "\n\r"):
        raise UserError(f"{image_id!r} has a line break in its name; rename it")
    try:
        image_id.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{image_id!r} is not valid UTF-8; rename it") from error
    return image_id


def _image_names(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.name.lower().endswith(SUFFIXES)
        and not entry.name.startswith(".")
        and not entry.is_dir()  # a broken link is an unreadable image
    )
