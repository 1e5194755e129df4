"""Fixtures of the gallery: an engine of each kind, and rows to put into it."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import groups_of
from tests.gallery.servers import MILVUS_LITE, Server, running
from tests.gallery.toys import NEW, NEWEST, OLD, toy_certificate, toy_images, written
from unibct.arrays import normalized
from unibct.embedders import Opener
from unibct.gallery.engines import EMBEDDED, Engine, Place, open_engine
from unibct.gallery.gallery import Gallery
from unibct.gallery.rows import GalleryRows, Metadata, sealed_rows
from unibct.maps.space_map import save_map
from unibct.training.mapped_model import adapt_embedders


def on_server(name: str) -> object:
    """A parameter for tests on a real server; one test process starts it for all of them."""
    return pytest.param(name, marks=pytest.mark.xdist_group(name))


def on_one_server(name: str) -> Callable[[Any], Any]:
    """Marks a test that needs this server."""

    def marked(test: Any) -> Any:
        return pytest.mark.xdist_group(name)(test)

    return marked


_STARTED: dict[str, tuple[Server, ExitStack]] = {}


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """Starts a server when the first test asks for it; it ends after the last one of its group."""

    def started(name: str) -> Server:
        if name not in _STARTED:
            stack = ExitStack()
            _STARTED[name] = (stack.enter_context(running(name)), stack)
        return _STARTED[name][0]

    yield started
    for name in list(_STARTED):
        _stop(name)


def _stop(name: str) -> None:
    _STARTED.pop(name)[1].close()


@pytest.hookimpl(trylast=True)  # after the fixtures of the test
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End a server that no further test of this process needs: Milvus computes when idle, too."""
    needed = set() if nextitem is None else groups_of(nextitem)
    for name in (groups_of(item) - needed) & set(_STARTED):
        _stop(name)


REAL = [EMBEDDED, on_server("postgresql"), on_server("milvus")]


@pytest.fixture(params=[*REAL, on_server(MILVUS_LITE)])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    servers: Callable[[str], Server],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[str, Place]:
    """An engine's name, and a place that has not been used.

    Milvus Lite is no server to scale out with, but it speaks as newer servers do than the one
    that can be installed as a package.
    """
    name = request.param
    if name.startswith("milvus"):  # nobody was killed in this process
        monkeypatch.setattr("unibct.gallery.engines.milvus._SETTLING_SECONDS", 0)
    address = "" if name == EMBEDDED else servers(name).address
    name = "milvus" if name == MILVUS_LITE else name
    return name, Place(tmp_path / "gallery", "gallery_test", address)


@pytest.fixture
def engine(place: tuple[str, Place]) -> Iterator[Engine]:
    """An empty engine."""
    opened = open_engine(*place)
    opened.create()
    yield opened
    opened.destroy()
    opened.close()


def random_vectors(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return normalized(generator.standard_normal((rows, dim)).astype(np.float32))


def some_rows(
    kind: str,
    ids: list[str],
    *,
    step: int = 1,
    dim: int = 8,
    seed: int = 0,
    metadata: list[Metadata] | None = None,
) -> GalleryRows:
    """Rows with random vectors; the label is the first letter of the id."""
    return sealed_rows(
        kind,
        ids,
        [row_id[0] for row_id in ids],
        metadata or [{} for _ in ids],
        random_vectors(len(ids), dim, seed),
        step,
    )


@contextmanager
def killed(engine: Engine, name: str = "write", *, after: int = 0) -> Generator[None]:
    """Within it the process is stopped when it calls a method of the engine once more than that."""
    method, allowed = getattr(engine, name), iter(range(after))

    def stops(*arguments: Any, **options: Any) -> None:
        if next(allowed, None) is None:
            raise KeyboardInterrupt
        method(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine, name, stops)
        yield


@contextmanager
def broken(place: str) -> Generator[None]:
    """Within it this function of ``unibct.gallery`` breaks down, and what was begun with it."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(f"unibct.gallery.{place}", lambda *_, **__: 1 / 0)
        yield


@pytest.fixture
def toy_gallery(tmp_path: Path) -> Gallery:
    """48 rows of a small old model in the embedded engine."""
    made = Gallery.create(tmp_path / "G", OLD)
    made.add(toy_images())
    return made


@pytest.fixture
def upgraded(toy_gallery: Gallery, tmp_path: Path) -> Gallery:
    """The same gallery, searched by a new model."""
    old = toy_gallery.folder.state.standing.searching
    new = toy_gallery.folder.opener.open(NEW).fingerprint
    toy_gallery.upgrade(NEW, [written(toy_certificate(old, new), tmp_path)])
    return toy_gallery


@pytest.fixture
def upgraded_twice(upgraded: Gallery, tmp_path: Path) -> Gallery:
    """Rows of two old models, searched by a third one."""
    upgraded.add(toy_images(per_class=1, first=20))
    newest = Opener().open(NEWEST).fingerprint
    certificates = [
        written(toy_certificate(kind, newest), tmp_path) for kind in upgraded.folder.state.kinds
    ]
    upgraded.upgrade(NEWEST, certificates)
    return upgraded


def fitted_map(old: str, new: str, folder: Path) -> Path:
    """A map of the rows of an older model into the space of a newer one."""
    models = Opener().open(new), Opener().open(old)
    images = toy_images(per_class=30, first=200)
    save_map(adapt_embedders(*models, images, direction="forward", kind="linear"), folder)
    return folder


@pytest.fixture
def forward_map(tmp_path: Path) -> Path:
    """A map of the old model's rows into the space of the new one."""
    return fitted_map(OLD, NEW, tmp_path / "map")
