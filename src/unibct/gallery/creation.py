"""Making an empty gallery."""

import re
import shutil
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from unibct.data.checked_set import NoReadableImageError
from unibct.errors import UserError
from unibct.files import require_absent
from unibct.gallery.certificate import read_certificate
from unibct.gallery.engines.engine import Engine
from unibct.gallery.engines.table import Place, open_engine
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.gate import keep_queries
from unibct.gallery.shelf import describe_model, keep_model
from unibct.gallery.sources import Source, note_left_out
from unibct.gallery.state import CREATE, GalleryState, Standing, now, write_state


def create_gallery(
    folder: GalleryFolder,
    model: str,
    engine: tuple[str, str],
    certificates: Sequence[str | Path] = (),
    *,
    known: int | Source,
    keep_images: bool,
    skip_bad: bool = False,
) -> None:
    """Make an empty gallery in a new folder.

    Args:
        folder: that is not there yet.
        model: that makes and searches its rows.
        engine: a name from ``ENGINES``, and the address of its server.
        certificates: with thresholds of the model.
        known: how many known queries to keep of what is added first; or the user's own queries,
            whose mates are the rows with their labels.
        keep_images: keep their images.
        skip_bad: leave queries out whose images cannot be read, instead of refusing.
    """
    path = folder.path
    require_absent(path)
    if skip_bad and not isinstance(known, int):
        known = _readable(folder, known)
    papers = [read_certificate(file) for file in certificates]
    maker, embedder = describe_model(model, folder.opening)
    name = gallery_name(path)
    rows = open_engine(engine[0], Place(path, name, engine[1]))
    standing = Standing(maker.fingerprint)
    state = GalleryState(name, *engine, {maker.fingerprint: maker}, standing)
    count = known if isinstance(known, int) else len(known)
    details = {"known": count, "keep_images": keep_images, "ended": now()}
    state = state.begun(CREATE, **details).changed_step(1, done=True)
    rows.create()
    with nothing_left_behind(rows, path):
        rows.add_kind(maker.fingerprint, maker.dim)
        keep_model(path, embedder)
        for paper in papers:
            folder.keep_certificate(paper)
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
    note_left_out(folder.progress, known.name, bad)
    return readable


@contextmanager
def nothing_left_behind(rows: Engine, path: Path) -> Generator[None]:
    """Remove a new gallery if the block that fills it fails, so that it can be tried again.

    Args:
        rows: the engine of the gallery, which is closed in any case.
        path: of its folder, which was not there before.
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
