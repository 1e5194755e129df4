import shutil
from dataclasses import replace

import pytest
from PIL import Image

from unibct.benchmark.grid import Grid
from unibct.benchmark.run import plan_benchmark
from unibct.benchmark.workspace import read_result
from unibct.errors import UserError


def test_changed_and_unreadable_images_are_found_before_any_training(benchmark, grid, tmp_path):
    photos = tmp_path / "photos"
    shutil.copytree(grid.data, photos)
    moved = replace(grid, data=str(photos))
    out = benchmark.workspace.out
    assert not plan_benchmark(moved, out, device="cpu").unfinished_jobs  # the same images elsewhere
    first = min(photos.rglob("*.png"))
    Image.new("L", (32, 32)).save(first)
    with pytest.raises(UserError, match="some of its images have changed since; choose"):
        plan_benchmark(moved, out, device="cpu")
    plan_benchmark(moved, out, device="cpu", read_images=False)  # for a report
    first.write_bytes(b"")
    with pytest.raises(UserError, match=f"1 unreadable image: .*{first.name}.*skip_bad"):
        plan_benchmark(moved, tmp_path / "new", device="cpu")
    skipping = plan_benchmark(replace(moved, skip_bad=True), tmp_path / "new", device="cpu")
    whole, fewer = (b.workspace.all_training_images for b in (benchmark, skipping))
    assert len(fewer) == len(whole) - 1


@pytest.mark.parametrize("role", ["data", "test", "validation"])
def test_results_among_the_images_are_refused(grid, tmp_path, role):
    images = tmp_path / role
    shutil.copytree(grid.data if role == "data" else grid.test, images)
    if role == "validation":  # has other classes than the test
        for folder in list(images.iterdir()):
            folder.rename(images / f"other {folder.name}")
    moved = replace(grid, **{role: str(images)})
    with pytest.raises(UserError, match=f"out is within the images, {images}"):
        plan_benchmark(moved, images / "out", device="cpu")


def test_a_folder_of_another_benchmark_is_refused(benchmark, grid):
    other = Grid(grid.data, grid.test, grid.recipe.updated(eta=3.0), seeds=(0,))
    with pytest.raises(UserError, match=r"its recipe.eta is 1.0, not 3.0; choose another folder"):
        plan_benchmark(other, benchmark.workspace.out, device="cpu")


def test_merged_results_need_the_settings_that_they_were_made_with(finished, grid, tmp_path):
    source = finished[0].workspace.out
    cell = "cells/open-class/none/seed0"
    shutil.copytree(source / cell, tmp_path / cell)
    with pytest.raises(UserError, match=r"holds results but no benchmark.json.*copy that file too"):
        plan_benchmark(grid, tmp_path, device="cpu", read_images=False)
    shutil.copy(source / "benchmark.json", tmp_path)
    plan_benchmark(grid, tmp_path, device="cpu", read_images=False)


def test_a_damaged_result_is_named_with_what_to_do(tmp_path):
    folder = "cells/open-class/unibct/seed0"
    path = tmp_path / folder / "result.json"
    path.parent.mkdir(parents=True)
    for text in ('{"tests": {', "[]", "null", "5", '{"tests": {}}', '{"templates": 3}'):
        path.write_text(text)
        with pytest.raises(UserError, match=r"result\.json .*; remove that file and run the bench"):
            read_result(tmp_path, folder)
    path.write_text('{"tests": {}, "templates": 3}')
    assert read_result(tmp_path, folder)["templates"] == 3
