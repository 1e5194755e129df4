import gc
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import settings
from PIL import Image
from xdist.scheduler import LoadGroupScheduling

import tests.tiny_models  # noqa: F401
from tests.forked_commands import FORKS
from tests.torchvision_operators import declare_torchvision_operators
from unibct import cli, progress
from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.distributed.cpus import usable_cpus
from unibct.files import CACHE_VARIABLE

pytest_plugins = [
    "tests.benchmark.finished_benchmark",
    "tests.browser",
    "tests.examples.small_demo",
    "tests.export.exported_files",
]
torch.set_num_threads(1)  # several test processes share few cores
os.environ["OMP_NUM_THREADS"] = "1"
declare_torchvision_operators()
settings.register_profile("unibct", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("unibct")

TINY = [
    "size=16",  # a quarter of the work that 32 would be
    "epochs=3",
    "batch_size=16",
    "warmup_epochs=1",
    "refresh_epochs=[2]",
    "shift=0",
    "lr_warmup_epochs=0",
    "eta=1.0",
]


# Fixtures that train for some time. Tests that share one run in the same test process.
COSTLY_FIXTURES = {"finished", "runs", "small_demo"}
# The group of tests that takes longest: mostly they wait for the server.
LONGEST_GROUP = "milvus"
# Fixtures that train models or draw faces: left to `make test`.
SLOW_FIXTURES = {"finished", "trained_folder", "four_classes_old", "faces_root"}
# Left to `make test-all`: several processes, a browser, servers, other libraries, examples.
SLOWEST_FIXTURES = {"runs", "browser", "small_demo"}
SLOWEST_GROUPS = {
    "postgresql", "milvus", "milvus-lite", "gallery page", "other libraries", "export",
}  # fmt: skip
TINY_OPTIONS = [part for setting in TINY for part in ("--set", setting)]


def run_command(*arguments: object) -> int:
    """Run the command line in this process and return its exit code."""
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def in_another_process(function: Callable[[str], Any], argument: str) -> Any:
    """Return what a function returns in a process that shares nothing with this one."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, argument).result()


def tags_of_offline_page(page: str) -> list[str]:
    """Return every opening tag of a page, and check that the page loads no other file."""
    opened: list[str] = []
    sources: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            opened.append(tag)
            sources.extend(v for k, v in attrs if k in ("src", "href", "xlink:href") and v)

    Checker().feed(page)
    assert not {"script", "link", "iframe"} & set(opened)
    assert all(source.startswith(("data:image/png", "#")) for source in sources)
    assert not re.findall(r"url\((?!#)", page)
    return opened


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one test process make each costly fixture, and mark what quicker commands leave out."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        costly = COSTLY_FIXTURES & used
        assert len(costly) < 2, f"{item.name}: one more process would make {costly}"
        for fixture in costly:
            item.add_marker(pytest.mark.xdist_group(fixture))
        if SLOW_FIXTURES & used:
            item.add_marker(pytest.mark.slow)
        if SLOWEST_FIXTURES & used or SLOWEST_GROUPS & groups_of(item):
            item.add_marker(pytest.mark.slowest)
    items.sort(key=_begins_late)


def pytest_collection_finish() -> None:
    """Spare Python the search for garbage in what stays to the end: libraries and tests."""
    gc.collect()
    gc.freeze()


def _begins_late(item: pytest.Item) -> int:
    """Put long work first: the longest group, as one process has it all, then what is slow."""
    marks = {mark.name for mark in item.iter_markers()}
    is_early = [LONGEST_GROUP in groups_of(item), "slowest" in marks, "slow" in marks, True]
    return is_early.index(True)


def groups_of(item: pytest.Item) -> set[str]:
    """The groups that one test process runs as a whole."""
    return {mark.args[0] for mark in item.iter_markers("xdist_group")}


class _GroupsAndFiles(LoadGroupScheduling):
    """One test process runs all tests of a group, and of a file: it makes their fixtures once."""

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return nodeid.split("::")[0] if group == nodeid else group


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling:
    """Share out whole files and groups."""
    return _GroupsAndFiles(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With the slowest tests, one test process more than cores: it mostly waits for servers."""
    cores = usable_cpus()
    return cores if "not slowest" in config.option.markexpr else cores + 1


@pytest.fixture(autouse=True)
def progress_is_shown_to_nobody() -> Iterator[None]:
    """Let each test begin and end without a receiver of progress, see ``tests.notes.show``."""
    with progress.silenced():
        yield


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary folder for the user's cache, so that no test writes to the home folder."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def workers_share_an_import() -> Iterator[None]:
    """Let the workers of benchmarks in this process be forks of one that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unibct.benchmark.workers._CONTEXT", FORKS)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_done_twice() -> Iterator[None]:
    """Leave out what takes time in every test and tests nothing, but where it is the subject."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # no power fails here
        patch.setattr("unibct.gallery.status._SECONDS", 0.01)
        patch.setattr("typer.main.get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def short_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let maps train for fewer steps, where their quality is not what is tested."""
    monkeypatch.setattr("unibct.maps.vector_map._STEPS", 200)
    monkeypatch.setattr("unibct.maps.vector_map._SUPERVISED_STEPS", 200)


@pytest.fixture(scope="session")
def glyph_classes() -> ImageSet:
    """Twelve images of each of twelve classes of the embedded set."""
    images = open_images("glyphs:train")
    rows = [np.flatnonzero(images.labels == label)[:12] for label in range(12)]
    return images.select(np.concatenate(rows))


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory, glyph_classes: ImageSet) -> Path:
    """root/<class>/<image> with PNG, JPEG and WebP, grey and colour, of several sizes."""
    root = tmp_path_factory.mktemp("photos")
    kinds = [("png", "L", 32), ("jpg", "RGB", 48), ("webp", "RGB", 40), ("jpg", "L", 32)]
    for number, (image_id, label) in enumerate(
        zip(glyph_classes.ids, glyph_classes.labels, strict=True)
    ):
        suffix, mode, size = kinds[number % 4]
        folder = root / f"class {label:02}"
        folder.mkdir(exist_ok=True)
        image = Image.fromarray(glyph_classes.read(image_id)).convert(mode).resize((size, size))
        image.save(folder / f"{number:04}.{suffix}")
    return root
