"""The table of readers: what ``DATA`` on the command line may be.

Adding a reader is one file and one line in this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unibct.data.image_set import ImageSet, select_listed
from unibct.data.readers.folder import read_folder
from unibct.data.readers.glyphs import read_glyphs
from unibct.data.readers.list_file import is_list, read_list
from unibct.data.readers.recordio import is_record_set, read_records
from unibct.data.readers.webdataset import is_shards, read_shards
from unibct.errors import UserError


@dataclass(frozen=True)
class Reader:
    """A way to read images.

    Attributes:
        read: opens a set by its path.
        recognises: whether a path looks like one of its sets; asked in the table's order.
        says: what such a set looks like, for messages.
    """

    read: Callable[[str], ImageSet]
    recognises: Callable[[str], bool]
    says: str


READERS: dict[str, Reader] = {
    "recordio": Reader(
        read_records, lambda name: is_record_set(Path(name)), "a folder with train.rec"
    ),
    "webdataset": Reader(read_shards, is_shards, "shards-{000..012}.tar"),
    "list": Reader(read_list, lambda name: is_list(Path(name)), "a list of lines `path label`"),
    "folder": Reader(read_folder, lambda name: Path(name).is_dir(), "root/<class>/<image>"),
    "glyphs": Reader(read_glyphs, lambda name: name == "glyphs", "the embedded train, val, test"),
}


def open_images(name: str | Path, list_file: Path | None = None) -> ImageSet:
    """The image set that ``name`` stands for; with ``list_file``, only the images that it names.

    A path is recognised by what it is; ``folder:PATH``, ``recordio:PATH``, ``webdataset:PATH``
    and ``list:PATH`` say it where it is not. ``glyphs:PART`` is the embedded set.
    """
    images = _open(str(name))
    return images if list_file is None else select_listed(images, list_file)


def _open(name: str) -> ImageSet:
    kind, colon, path = name.partition(":")
    if colon and kind in READERS and not Path(name).exists():
        return READERS[kind].read(path)
    for reader in READERS.values():
        if reader.recognises(name):
            return reader.read(name)
    there = "is of no known kind" if Path(name).exists() else "is not there"
    kinds = ", ".join(f"{reader.says} ({kind}:)" for kind, reader in READERS.items())
    raise UserError(f"{name} {there}; DATA is one of: {kinds}")
