"""Reader of class folders: ``root/<class>/<image>``."""

import os
from pathlib import Path

import numpy as np

from unibct.data.decoding import SUFFIXES
from unibct.data.encoded_images import FileSource, checked_id, encoded_set
from unibct.data.image_set import ImageSet
from unibct.errors import UserError


def recognises(name: str) -> bool:
    """Return whether ``name`` is a folder."""
    return Path(name).is_dir()


def read(name: str) -> ImageSet:
    """Return all PNG, JPEG and WebP images in the class folders of ``name``, sorted by path.

    Hidden files and files of other types are ignored. A class folder without an image is an
    error, because it is usually the result of a failed copy.
    """
    root = Path(name)
    if not root.is_dir():
        raise UserError(f"{name} is not a folder root/<class>/<image>")
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
        file_names = _image_names(root / class_name)
        if not file_names:
            raise UserError(
                f"class folder {root / class_name} has no PNG, JPEG or WebP image; "
                "add images or remove the folder (the layout is root/<class>/<image>)"
            )
        ids.extend(checked_id(f"{class_name}/{file_name}") for file_name in file_names)
        labels.extend([label] * len(file_names))
    source = FileSource(root)
    return encoded_set(name, tuple(ids), np.asarray(labels, dtype=np.int64), tuple(classes), source)


def _image_names(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.name.lower().endswith(SUFFIXES)
        and not entry.name.startswith(".")
        and not entry.is_dir()  # a broken link stays, and is reported as an unreadable image
    )
