"""The readers: a module for each layout that images may have on disk, and the tables of layouts.

``READERS`` says what ``DATA`` may be, on the command line and in ``open_images``; ``LAYOUTS`` what
``convert`` writes. Help texts and messages are made from the tables. A new reader is a module with
the functions ``recognises`` and ``read``, and a line in ``READERS`` or an entry point of the group
``unibct.readers``. Decoding, batches and splits are in ``unibct.data``.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, cast

from unibct.errors import UserError
from unibct.registry import Registry

if TYPE_CHECKING:
    from unibct.data.image_set import ImageSet


class ReaderModule(Protocol):
    """What the module of a reader contains."""

    def recognises(self, name: str) -> bool:
        """Return whether ``name`` looks like a set that this reader can read."""
        ...

    def read(self, name: str) -> "ImageSet":
        """Return the image set at ``name``, which comes without the prefix of its kind."""
        ...


@dataclass(frozen=True)
class Reader:
    """A way to read images."""

    module: str  # is imported when it is used, so that ``unibct --help`` needs none of them
    short: str  # what such a set is, in a word or two
    description: str  # what such a set looks like

    def load(self) -> ReaderModule:
        """Import the module of this reader."""
        return cast(ReaderModule, import_module(self.module))


# A name without a prefix is read by the first reader that recognises it.
READERS: Registry[Reader] = Registry(
    "reader",
    {
        "recordio": Reader(
            "unibct.data.readers.recordio", ".rec", "a RecordIO file train.rec, or its folder"
        ),
        "webdataset": Reader(
            "unibct.data.readers.webdataset", ".tar", "tar files such as shards-{000..012}.tar"
        ),
        "list": Reader(
            "unibct.data.readers.list_file", "list", "a text file with lines `path label`"
        ),
        "folder": Reader(
            "unibct.data.readers.image_folder",
            "folder",
            "a folder of PNG, JPEG or WebP: root/<class>/<image>",
        ),
        "glyphs": Reader(
            "unibct.data.readers.glyphs",
            "glyphs:train|val|test|final",
            "the embedded images: glyphs:train, glyphs:val, glyphs:test, glyphs:final",
        ),
    },
)
_PACKED = ("recordio", "webdataset")  # their folders may have images beside the files


@dataclass(frozen=True)
class Layout:
    """A layout that ``convert`` writes."""

    writer: str  # ``module:class``, see ``convert.LayoutWriter``
    description: str  # a few words for help texts

    def load(self) -> Any:
        """Import the class."""
        return resolve_name(self.writer)


LAYOUTS: Registry[Layout] = Registry(
    "layout",
    {
        "recordio": Layout("unibct.data.convert:RecordioWriter", "train.rec, train.idx, property"),
        "folder": Layout("unibct.data.convert:FolderWriter", "a folder for each class"),
    },
)


def open_images(
    name: str | Path, list_file: str | Path | None = None, *, skip_bad: bool = False
) -> "ImageSet":
    """Open the image set that ``name`` stands for.

    The kind of a path is recognised from the path. If it is not, put it before the path:
    ``folder:PATH``, ``recordio:PATH``, ``webdataset:PATH`` or ``list:PATH``. ``glyphs:train``,
    ``glyphs:val``, ``glyphs:test`` and ``glyphs:final`` are the embedded sets.

    Args:
        name: the path or the name of the set.
        list_file: a file with one image id per line; the result has only these images.
        skip_bad: whoever reads the set leaves unreadable images out, instead of refusing.
    """
    return _listed(_open(str(name)), list_file, skip_bad=skip_bad)


def open_unclassed(
    name: str | Path, list_file: str | Path | None = None, *, skip_bad: bool = False
) -> "ImageSet":
    """Open images that need no class: queries, and the rows of a gallery.

    Besides all that ``open_images`` opens, ``name`` may be one image file, or a folder of images
    without class folders: these are of one class, whose name is empty.
    """
    from unibct.data.readers.image_folder import read_loose

    path = str(name)
    if not Path(path).exists():
        path = path.removeprefix("folder:")
    is_packed = any(READERS[kind].load().recognises(path) for kind in _PACKED)
    loose = None if is_packed else read_loose(path)
    if loose is None:
        return open_images(name, list_file, skip_bad=skip_bad)
    return _listed(loose, list_file, skip_bad=skip_bad)


def describe_data() -> str:
    """Return what DATA may be, each with its prefix, as a list for help texts and messages."""
    return ", ".join(f"{reader.description} ({kind}:)" for kind, reader in READERS.items())


def describe_data_briefly() -> str:
    """Return what DATA may be in a few words, for the help of an argument."""
    *others, last = (reader.short for reader in READERS.values())
    return f"{', '.join(others)} or {last}"


def _listed(images: "ImageSet", list_file: str | Path | None, *, skip_bad: bool) -> "ImageSet":
    from unibct.data.image_set import select_listed

    if skip_bad:
        images = replace(images, skip_bad=True)
    return images if list_file is None else select_listed(images, Path(list_file))


def _open(name: str) -> "ImageSet":
    from unibct.data.readers.image_folder import has_images

    kind, colon, path = name.partition(":")
    if colon and kind in READERS and not Path(name).exists():
        return READERS[kind].load().read(path)
    for kind, reader in READERS.items():
        module = reader.load()
        if module.recognises(name):
            if kind != "folder" and has_images(name):
                raise UserError(
                    f"{name} has class folders with images, and a {reader.short} file too: write "
                    f"folder:{name} or {kind}:{name}"
                )
            return module.read(name)
    problem = "is not recognised" if Path(name).exists() else "is not there"
    raise UserError(f"{name} {problem}; DATA is one of: {describe_data()}")
