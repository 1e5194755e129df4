"""What decides the files of a store that is being made, and which of its shards are done.

Next to each finished shard a note ``shard-000000.json`` holds the key of the plan and the shard's
description. A run that starts again keeps the shards whose notes have its key. The notes are
removed when the store is complete.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from unibct.data.loader import PixelBatches
from unibct.embeddings.checking import content_fingerprint
from unibct.embeddings.folder import read_description
from unibct.embeddings.layout import (
    DESCRIPTION_FILE,
    SHARD_ROWS,
    Shard,
    require_shard_rows,
    shard_from_json,
    shard_is_whole,
)
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.files import read_json, require_absent, write_json
from unibct.models.embedder import Embedder

_Content = TypeVar("_Content")

_NOTES = "shard-*.json"
_FEWEST_SHARD_ROWS = 1024
_FILES_OF_A_STORE = re.compile(
    r"(vectors|labels|ids|shard|checked)-\d{6}\.(npy|txt|json)"
    r"|(training_)?classes\.txt|\..*\.tmp"
)


@dataclass(frozen=True)
class StorePlan:
    """The store to make: a model's embeddings of some pixels, and how they are stored.

    Attributes:
        fingerprint: the model's fingerprint.
        pixel_digest: changes with any of the pixels, or of the stored embeddings.
        images: how many images there are.
        flip: whether the mirror images are embedded.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file.
    """

    fingerprint: str
    pixel_digest: str
    images: int
    flip: bool
    dtype: str
    shard_rows: int

    def __post_init__(self) -> None:
        """Refuse files without rows."""
        require_shard_rows(self.shard_rows)

    @property
    def key(self) -> str:
        """A digest of everything that decides the store's files."""
        parts = (
            self.fingerprint,
            self.pixel_digest,
            str(self.flip),
            self.dtype,
            str(self.shard_rows),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def shard_ranges(self) -> list[range]:
        """The rows of each shard."""
        starts = range(0, self.images, self.shard_rows)
        return [range(start, min(start + self.shard_rows, self.images)) for start in starts]


def plan_store(
    model: Embedder,
    pixels: PixelBatches,
    *,
    flip: bool = False,
    dtype: str = "float32",
    shard_rows: int | None = None,
) -> StorePlan:
    """Return the plan of a store of a model's embeddings.

    Args:
        model: the model.
        pixels: the images' pixels.
        flip: embed the mirror images.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file. The default gives about 64 files or more, so that any usual
            number of processes can divide them.
    """
    images = len(pixels.images)
    rows = shard_rows or default_shard_rows(images)
    digest = pixels.digest
    if isinstance(model, StoredEmbeddings):  # their fingerprint may be a name that stays
        digest += content_fingerprint(model.embeddings)
    return StorePlan(model.fingerprint, digest, images, flip, dtype, rows)


def default_shard_rows(images: int) -> int:
    """Return the rows in a file of a store with this many images, see ``plan_store``."""
    return min(SHARD_ROWS, max(_FEWEST_SHARD_ROWS, -(-images // 64)))


def is_finished(folder: Path, plan: StorePlan) -> bool:
    """Return whether a folder is the complete store of this plan."""
    return (folder / DESCRIPTION_FILE).is_file() and read_description(folder).source == plan.key


def require_new_or_unfinished(folder: Path, plan: StorePlan) -> None:
    """Raise an error if a folder holds anything but an unfinished store of this plan."""
    require_files_of_a_store(folder)
    require_own_notes(folder, (_read_note(path)[0] for path in folder.glob(_NOTES)), plan)


def require_own_notes(folder: Path, keys: Iterable[str], plan: StorePlan) -> None:
    """Raise an error if the note of a shard in a folder has the key of another plan."""
    if any(key != plan.key for key in keys):
        raise UserError(
            f"{folder} holds unfinished embeddings by another model or of other images; "
            "choose another --out or remove it"
        )


def require_files_of_a_store(folder: Path) -> None:
    """Raise an error if a folder holds anything but files of an unfinished store."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if not all(_FILES_OF_A_STORE.fullmatch(name) for name in names):
        require_absent(folder)


def shard_is_done(folder: Path, number: int, plan: StorePlan) -> bool:
    """Return whether an earlier run with the same plan finished a shard."""
    path = _note_path(folder, number)
    if not path.is_file():
        return False
    key, shard = _read_note(path)
    return key == plan.key and shard_is_whole(folder, shard)


def write_shard_note(folder: Path, number: int, plan: StorePlan, shard: Shard) -> None:
    """Note that a shard is finished."""
    write_json(_note_path(folder, number), {"key": plan.key, "shard": asdict(shard)})


def noted_shards(folder: Path, plan: StorePlan) -> list[Shard]:
    """Return all shards of a plan, from their notes."""
    numbers = range(len(plan.shard_ranges))
    return [_read_note(_note_path(folder, number))[1] for number in numbers]


def remove_shard_notes(folder: Path) -> None:
    """Remove all notes; a complete store does not need them."""
    for path in folder.glob(_NOTES):
        path.unlink()


def _note_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06}.json"


def _read_note(path: Path) -> tuple[str, Shard]:
    """Return a note's key and shard."""
    return read_note(path, lambda note: (note["key"], shard_from_json(note["shard"])))


def read_note(path: Path, understood: Callable[[Any], _Content]) -> _Content:
    """Return what the note of a shard says.

    Args:
        path: of the note.
        understood: makes it from the content of the file.
    """
    try:
        return understood(read_json(path))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} cannot be understood; remove {path.parent}") from error
