import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing

import numpy as np
import pytest

from tests.gallery import toys
from tests.gallery.toys import OLD, toy_images
from unibct.embedders import Opener
from unibct.errors import UserError
from unibct.files import CACHE_VARIABLE
from unibct.gallery.gallery import Gallery
from unibct.gallery.gallery_folder import (
    GalleryBusyError,
    GalleryFolder,
    describe_model,
    keep_model,
    open_model,
    query_view,
)
from unibct.gallery.page.shown_gallery import Query, ShownGallery
from unibct.gallery.search_request import SearchRequest


def test_a_callable_is_opened_where_it_is(tmp_path):
    row_kind, embedder = describe_model(OLD, Opener())
    keep_model(tmp_path, embedder)
    assert not (tmp_path / "models").exists()
    assert open_model(tmp_path, row_kind, Opener()).fingerprint == row_kind.fingerprint


def test_a_model_that_has_changed_is_refused(tmp_path):
    row_kind, _ = describe_model(OLD, Opener())
    changed = type(row_kind)(**(vars(row_kind) | {"fingerprint": "f" * 32}))
    with pytest.raises(UserError, match="has changed"):
        open_model(tmp_path, changed, Opener())


def test_a_gallery_knows_a_callable_again_on_another_machine(tmp_path, monkeypatch):
    """Another device changes its vectors by the size of TF32; nothing but the gallery moves."""
    model, weights, rng = toys.old_model, toys.old_model.weights, np.random.default_rng(0)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    gallery = Gallery.create(tmp_path / "g", OLD)
    known = gallery.folder.state.searching.fingerprint
    gallery.close()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "another"))
    monkeypatch.setattr(model, "weights", weights * (1 + 1e-3 * rng.standard_normal(weights.shape)))
    alone = Opener().open(OLD)
    assert alone.fingerprint != known, "without the gallery it is another one"
    folder = GalleryFolder(tmp_path / "g")
    assert folder.model(known).fingerprint == known
    assert describe_model(OLD, folder.opener)[0].fingerprint == known
    shutil.rmtree(tmp_path / "g" / "probes")  # as in galleries of earlier versions
    with pytest.raises(UserError, match=f"if it is the same, .* fingerprint = '{known}'"):
        GalleryFolder(tmp_path / "g").model(known)
    monkeypatch.setattr(model, "weights", weights)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "third"))
    assert GalleryFolder(tmp_path / "g").model(known).fingerprint == known


def test_vectors_of_another_dimension_need_a_projection():
    vectors = np.eye(3, 4, dtype=np.float32)
    assert query_view(None, vectors, 4, "m") is vectors
    with pytest.raises(UserError, match="no projection into dimension 5"):
        query_view(None, vectors, 5, "m")


def test_two_writers_are_refused_and_readers_go_on(toy_gallery):
    other = Gallery(toy_gallery.folder.path)
    with toy_gallery.folder.writing():
        busy = pytest.raises(GalleryBusyError, match="another process is writing")
        with busy, other.folder.writing():
            pass
        assert other.status().as_json()["rows"] == 48
    with other.folder.writing():
        pass


def test_the_state_is_read_again_when_another_object_replaced_it(toy_gallery):
    other = Gallery(toy_gallery.folder.path)
    steps = len(other.folder.state.steps)
    toy_gallery.folder.save(toy_gallery.folder.state.begun("add").changed_step(3, done=True))
    assert len(other.folder.state.steps) == steps + 1


def test_whether_a_kind_has_rows_is_asked_as_rarely_as_is_safe(upgraded, monkeypatch):
    folder = upgraded.folder
    old, new = folder.state.kinds
    asked, ask = [], folder.engine.has_live
    monkeypatch.setattr(folder.engine, "has_live", lambda kind: asked.append(kind) or ask(kind))
    for _ in range(3):
        assert (folder.has_live(old), folder.has_live(new)) == (True, False)
    assert asked == [old, new]
    number = folder.save(folder.state.begun("add")).steps[-1].number
    for _ in range(2):  # while rows may come, a no is asked again
        assert (folder.has_live(old), folder.has_live(new)) == (True, False)
    assert asked[2:] == [old, new, new]
    folder.save(folder.state.changed_step(number, done=True))
    upgraded.add(toy_images(per_class=1, first=90))
    assert folder.has_live(new)


@pytest.mark.slow
def test_a_killed_writer_leaves_no_lock(toy_gallery):
    code = f"""
        import os
        from pathlib import Path
        from unibct.gallery.gallery_folder import GalleryFolder
        with GalleryFolder(Path({str(toy_gallery.folder.path)!r})).writing():
            os.kill(os.getpid(), 9)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode == -9
    with toy_gallery.folder.writing():
        pass


def with_wal(path):
    return [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")]


def restored_in_place(folder, other):
    """As a backup is put back: the log goes, and the file is written over."""
    for path in with_wal(folder / "rows.sqlite")[1:]:
        path.unlink()
    shutil.copyfile(other / "rows.sqlite", folder / "rows.sqlite")


def restored_by_sqlite(folder, other):
    """An earlier state, written into the open file by SQLite itself."""
    with (
        closing(sqlite3.connect(other / "rows.sqlite")) as source,
        closing(sqlite3.connect(folder / "rows.sqlite")) as target,
    ):
        source.backup(target)


def replaced_folder(folder, other):
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


GONE = "G is no longer the gallery that was opened"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder, other: (folder / "rows.sqlite").unlink(),
            r"rows\.sqlite is not there: the rows of this gallery are missing",
        ),
        (
            lambda folder, other: os.replace(other / "rows.sqlite", folder / "rows.sqlite"),
            r"rows\.sqlite was deleted or replaced while it was open",
        ),
        (restored_in_place, r"rows\.sqlite was deleted or replaced while it was open"),
        (restored_by_sqlite, r"rows\.sqlite went back to an earlier state while it was open"),
        (lambda folder, other: shutil.rmtree(folder), rf"{GONE}: .* deleted or moved"),
        (replaced_folder, f"{GONE}: another one is in its place"),
    ],
)
def test_an_open_gallery_notices_that_it_was_deleted_or_replaced(
    toy_gallery, tmp_path, change, message
):
    """It has answered before, so that all of its vectors are in memory."""
    other = Gallery.create(tmp_path / "H", OLD)
    other.add(toy_images(classes=2))
    other.close()
    queries = toy_images(per_class=1)
    toy_gallery.remove(["c0/7"])
    toy_gallery.index()
    toy_gallery.close()
    reader, shown = Gallery(toy_gallery.folder.path), ShownGallery(toy_gallery.folder.path)
    requests = [
        lambda: reader.search(queries, k=3),
        lambda: reader.search(queries, k=3, approximate=True),
        lambda: shown.search(Query(queries.read("c0/0")), SearchRequest(k=3)),
    ]
    if change is not restored_by_sqlite:  # counts are then those of the restored rows
        requests += [reader.status, shown.status]
    for request in requests:
        request()
    change(reader.folder.path, tmp_path / "H")
    for request in requests * 2:
        with pytest.raises(UserError, match=message):
            request()
