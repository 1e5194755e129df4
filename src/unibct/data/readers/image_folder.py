"""Reader of class folders: ``root/<class>/<image>``."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from unibct.data.decoding import OTHER_SUFFIXES, SUFFIXES
from unibct.data.image_set import FileSource, ImageSet, checked_id, encoded_set, warn_of_passed_over
from unibct.errors import UserError


def recognises(name: str) -> bool:
    """Return whether ``name`` is a folder."""
    return Path(name).is_dir()


def read(name: str) -> ImageSet:
    """Return all PNG, JPEG and WebP images in the class folders of ``name``, sorted by path.

    Hidden files and files of other types are ignored; a warning counts images among them, and
    folders within a class. A class folder without an image is an error, because it is usually the
    result of a failed copy.
    """
    root = Path(name)
    if not root.is_dir():
        raise UserError(f"{name} is not a folder root/<class>/<image>")
    classes = _class_names(root)
    if not classes:
        raise UserError(f"{name} has no class folders; the layout is root/<class>/<image>")
    ids: list[str] = []
    labels: list[int] = []
    any_image = (*SUFFIXES, *OTHER_SUFFIXES)
    files = (entry.name for entry in os.scandir(root) if not entry.is_dir())
    ignored = [file for file in files if file.lower().endswith(any_image) and file[0] != "."]
    for label, class_name in enumerate(classes):
        folder = root / class_name
        file_names, others = _class_content(folder)
        if not file_names and has_images(str(folder)):
            raise UserError(
                f"{folder} has no images but folders of images; the layout is "
                f"root/<class>/<image>: give {folder} as DATA"
            )
        if not file_names:
            raise UserError(
                f"class folder {folder} has no PNG, JPEG or WebP image; "
                "add images or remove the folder (the layout is root/<class>/<image>)"
            )
        ids.extend(checked_id(f"{class_name}/{file_name}") for file_name in file_names)
        labels.extend([label] * len(file_names))
        ignored.extend(f"{class_name}/{other}" for other in others)
    reason = "only PNG, JPEG and WebP files directly in a class folder are read"
    warn_of_passed_over(name, ignored, reason)
    array = np.asarray(labels, dtype=np.int64)
    return encoded_set(name, tuple(ids), array, tuple(classes), FileSource(root))


def read_loose(name: str) -> ImageSet | None:
    """Return an image file, or the images of a folder without class folders; None if neither.

    All are of one class, whose name is empty.
    """
    path = Path(name)
    if path.is_file() and path.name.lower().endswith(SUFFIXES):
        root, file_names = path.parent, [path.name]
    elif path.is_dir() and not _class_names(path):
        root, (file_names, others) = path, _class_content(path)
        warn_of_passed_over(name, others, "only PNG, JPEG and WebP files are read")
    else:
        return None
    if not file_names:
        return None
    ids = tuple(checked_id(file_name) for file_name in file_names)
    return encoded_set(name, ids, np.zeros(len(ids), dtype=np.int64), ("",), FileSource(root))


def has_images(name: str) -> bool:
    """Return whether ``name`` is a folder with a class folder that has an image."""
    with suppress(OSError):  # a folder that may not be read has none for us
        return any(_class_content(Path(e.path))[0] for e in os.scandir(name) if _is_class(e))
    return False


def _is_class(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _class_names(root: Path) -> list[str]:
    """Return the names of the class folders; a link that leads to no folder is an error."""
    names: list[str] = []
    for entry in os.scandir(root):
        path = Path(entry.path)
        if _is_class(entry):
            names.append(entry.name)
        elif entry.is_symlink() and not path.suffix and not path.exists() and path.name[0] != ".":
            raise UserError(f"{path} is a link to something that is not there; remove it")
    return sorted(names)


def _class_content(folder: Path) -> tuple[list[str], list[str]]:
    """Return the images of a class folder, and what may have been meant but is passed over."""
    images: list[str] = []
    others: list[str] = []
    for entry in os.scandir(folder):
        name = entry.name.lower()
        if name.startswith("."):
            continue
        if entry.is_dir() or name.endswith(OTHER_SUFFIXES):
            others.append(entry.name)
        elif name.endswith(SUFFIXES):  # a broken link stays: it is reported as an unreadable image
            images.append(entry.name)
    return sorted(images), others
