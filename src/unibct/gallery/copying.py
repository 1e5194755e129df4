"""Moving a gallery to another engine, or another place: rows, marks, models and history."""

import shutil
from dataclasses import replace
from pathlib import Path

from unibct.errors import UserError
from unibct.files import require_absent
from unibct.gallery.asked import copy_asked
from unibct.gallery.creation import gallery_name, nothing_left_behind
from unibct.gallery.engines.engine import Engine
from unibct.gallery.engines.table import Place, open_engine
from unibct.gallery.folder import CERTIFICATES_FOLDER, GalleryFolder
from unibct.gallery.gate import KNOWN_FOLDER
from unibct.gallery.settling import settle
from unibct.gallery.shelf import MODELS_FOLDER
from unibct.gallery.state import GalleryState, write_state


def copy_gallery(folder: GalleryFolder, target: Path, *, engine: str, address: str) -> int:
    """Copy a gallery, and return how many rows were copied.

    The target becomes a gallery when everything is in it. A copy that fails or is stopped leaves
    nothing; one that was killed leaves a folder that is no gallery.

    Args:
        folder: the gallery.
        target: a new folder.
        engine: a name from ``ENGINES``.
        address: of the engine's server.
    """
    require_absent(target)
    with folder.writing():
        settle(folder)
        state, name = folder.state, gallery_name(target)
        copied = replace(state, name=name, engine=engine, address=address)
        other = open_engine(engine, Place(target, name, address))
        other.create()
        with nothing_left_behind(other, target):
            rows = _copy_rows(folder, other)
            _copy_files(folder.path, target, copied)
    return rows


def _copy_rows(folder: GalleryFolder, other: Engine) -> int:
    """Copy all rows with their marks, and return how many they are."""
    rows = 0
    total = sum(folder.engine.count(kind).rows for kind in folder.engine.kinds())
    with folder.progress.task("copying", total, "rows") as advance:
        for kind, dim in folder.engine.kinds().items():
            other.add_kind(kind, dim)
            for part in folder.engine.scan(kind, batch=1024):
                other.write(kind, part)
                rows += len(part)
                advance(len(part))
            if other.count(kind) != folder.engine.count(kind):
                raise UserError(f"the copy of the rows of {kind} is not complete; try again")
    return rows


def _copy_files(source: Path, target: Path, state: GalleryState) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in (MODELS_FOLDER, CERTIFICATES_FOLDER, KNOWN_FOLDER):
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
    copy_asked(source, target)
    write_state(target, state)  # last: it makes the folder a gallery
