"""A small benchmark that was run once, for the tests of results and reports."""

import pytest
from PIL import Image

from tests.conftest import TINY
from unibct.benchmark.grid import Grid
from unibct.benchmark.run import plan_benchmark, run_benchmark
from unibct.data.readers import open_images
from unibct.training.recipe import load_recipe

METHODS = ("none", "unibct-plus", "procrustes")


@pytest.fixture(scope="session")
def unseen_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("unseen")
    images = open_images("glyphs:val")
    for number, (image_id, label) in enumerate(zip(images.ids, images.labels, strict=True)):
        if label < 8:
            folder = root / f"unseen {label}"
            folder.mkdir(exist_ok=True)
            Image.fromarray(images.read(image_id)).save(folder / f"{number:04}.png")
    return root


@pytest.fixture(scope="session")
def grid(photo_folder, unseen_folder):
    data, test, recipe = str(photo_folder), str(unseen_folder), load_recipe("glyphs", TINY)
    scenarios = ("extended-data", "open-class")
    return Grid(data, test, recipe, scenarios, METHODS, (0, 1), ("unibct-plus",))


@pytest.fixture(scope="session")
def finished(grid, tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmark")
    benchmark = plan_benchmark(grid, out, workers=2, device="cpu")
    return benchmark, run_benchmark(benchmark)


@pytest.fixture(scope="session")
def benchmark(finished):
    return finished[0]


@pytest.fixture(scope="session")
def results(finished):
    return finished[1]
