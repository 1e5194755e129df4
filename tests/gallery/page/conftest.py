"""A gallery's page, without a network."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.gallery.toys import NEW, OLD, toy_certificate, toy_images, written
from unibct.data.decoding import encode_png
from unibct.data.image_set import ImageSet
from unibct.gallery.gallery import Gallery
from unibct.gallery.page.app import make_app
from unibct.gallery.page.changes import GalleryChanges
from unibct.gallery.page.shown_gallery import ShownGallery

ADDRESS = "http://127.0.0.1:8765"
MakeClient = Callable[..., TestClient]


def png(image_id: str = "c1/60") -> bytes:
    """An image that is no row: another picture of the class of the same name."""
    return encode_png(toy_images(per_class=8, first=60).read(image_id))


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery as it was made, and one that was upgraded; tests work on copies."""
    root = tmp_path_factory.mktemp("galleries")
    gallery = Gallery.create(root / "made", OLD)
    gallery.add(toy_images())
    old = gallery.folder.state.standing.searching
    gallery.close()
    shutil.copytree(root / "made", root / "upgraded")
    gallery = Gallery(root / "upgraded")
    new = gallery.folder.opener.open(NEW).fingerprint
    gallery.upgrade(NEW, [written(toy_certificate(old, new), root)])
    gallery.close()
    return root


@pytest.fixture
def toy_gallery(templates: Path, tmp_path: Path) -> Gallery:
    """48 rows of a small old model."""
    return Gallery(shutil.copytree(templates / "made", tmp_path / "G"))


@pytest.fixture
def upgraded(templates: Path, tmp_path: Path) -> Gallery:
    """The same rows, searched by a new model."""
    return Gallery(shutil.copytree(templates / "upgraded", tmp_path / "G"))


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    """Makes a client of the page of a gallery."""
    with ExitStack() as opened:

        def make(path: Path, images: ImageSet | None = None, **options: Any) -> TestClient:
            app = make_app(ShownGallery(path, images), GalleryChanges(path, images), **options)
            return opened.enter_context(TestClient(app, base_url=ADDRESS))

        yield make


@pytest.fixture
def client(upgraded: Gallery, make_client: MakeClient) -> TestClient:
    """The page of an upgraded gallery with the images of its rows."""
    return make_client(upgraded.folder.path, toy_images())


def ended(client: TestClient) -> dict[str, Any]:
    """Wait for the work in the background, and return the status."""
    for _ in range(600):
        status = client.get("/api/status").json()
        if status["job"]["state"] != "running":
            return status
        time.sleep(0.02)
    raise AssertionError(f"it goes on and on: {status['job']}")
