"""Making an empty gallery."""

import re
import shutil
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from unibct import progress
from unibct.data.checked_set import NoReadableImageError
from unibct.errors import UserError
from unibct.evaluation.certificate import Certificate
from unibct.files import require_absent
from unibct.gallery.engines import Engine, Place, open_engine
from unibct.gallery.gallery_folder import (
    CERTIFICATES_FOLDER,
    LOCK_FILE,
    MODELS_FOLDER,
    GalleryFolder,
    describe_model,
    keep_model,
)
from unibct.gallery.known_queries import KNOWN_FOLDER, keep_queries
from unibct.gallery.orders import copy_found_counts
from unibct.gallery.sources import Source, note_left_out
from unibct.gallery.state import CREATE, STATE_FILE, GalleryState, Standing, now, write_state
from unibct.gallery.steps import end_interrupted_steps


def create_gallery(
    folder: GalleryFolder,
    model: str,
    engine: tuple[str, str],
    certificates: Sequence[str | Path] = (),
    *,
    known: int | Source,
    keep_images: bool,
) -> None:
    """Make an empty gallery in a new folder.

    The certificates give thresholds of the model. ``known`` is how many known queries to keep of
    what is added first, or the user's own queries, whose mates are the rows with their labels.
    """
    path = folder.path
    require_absent(path)
    if not isinstance(known, int) and known.skip_bad:
        known = _readable(folder, known)
    given = [Certificate.read(file) for file in certificates]
    row_kind, embedder = describe_model(model, folder.opener)
    name = gallery_name(path)
    rows = open_engine(engine[0], Place(path, name, engine[1]))
    standing = Standing(row_kind.fingerprint)
    state = GalleryState(name, *engine, {row_kind.fingerprint: row_kind}, standing)
    count = known if isinstance(known, int) else len(known)
    details = {"known": count, "keep_images": keep_images, "ended": now()}
    state = state.begun(CREATE, **details).changed_step(1, done=True)
    rows.create()
    with nothing_left_behind(rows, path):
        rows.add_kind(row_kind.fingerprint, row_kind.dim)
        keep_model(path, embedder)
        for certificate in given:
            folder.keep_certificate(certificate)
        if not isinstance(known, int):
            keep_queries(folder, known, count, images=keep_images, rows=False, model=embedder)
        write_state(path, state)  # last: it makes the folder a gallery


def _readable(folder: GalleryFolder, known: Source) -> Source:
    """Return the queries whose images can be read, and note the others."""
    readable = known.readable()
    if len(known) and not len(readable):
        raise NoReadableImageError(known.name, len(known))
    here = set(readable.ids)
    bad = [query_id for query_id in known.ids if query_id not in here]
    note_left_out(known.name, bad)
    return readable


@contextmanager
def nothing_left_behind(rows: Engine, path: Path) -> Generator[None]:
    """Remove a new gallery if the block that fills it fails, so that it can be tried again.

    Its folder was not there before. Its engine is closed in any case.
    """
    try:
        yield
    except BaseException:
        with suppress(UserError):  # such as a server that is away
            rows.destroy()
        shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        rows.close()


def gallery_name(path: Path) -> str:
    """Return a name that no other gallery in the same database has."""
    readable = re.sub(r"[^a-z0-9]+", "_", path.resolve().name.lower()).strip("_")[:24]
    return f"unibct_{readable or 'gallery'}_{uuid.uuid4().hex[:8]}"


# Moving a gallery to another engine, or another place: rows, marks, models and history.


def copy_gallery(folder: GalleryFolder, target: Path, *, engine: str, address: str) -> int:
    """Copy a gallery into a new folder, and return how many rows were copied.

    The target becomes a gallery when everything is in it. A copy that fails or is stopped leaves
    nothing; one that was killed leaves a folder that is no gallery.
    """
    require_absent(target)
    with folder.writing():
        end_interrupted_steps(folder)
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
    with progress.task("copying", total, "rows") as advance:
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
    copy_found_counts(source, target)
    write_state(target, state)  # last: it makes the folder a gallery


# Deleting a gallery: its rows on the engine's server, and its folder.


def delete_gallery(folder: GalleryFolder) -> None:
    """Delete a gallery for good.

    The rows go first and the state last: a deletion that was killed can be repeated. If the
    server cannot be reached, nothing is deleted. Galleries that ``copy`` has made from this one
    stay as they are.
    """
    real = folder.path.resolve()  # it may be a link, or the current folder
    with folder.writing():
        folder.engine.destroy()
        folder.close()
        for path in folder.path.iterdir():
            if path.name in (STATE_FILE, LOCK_FILE):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        (folder.path / STATE_FILE).unlink()
    shutil.rmtree(real)
    if folder.path.is_symlink():
        folder.path.unlink()
