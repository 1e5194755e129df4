import json
import shutil

import pytest

from unibct.benchmark.cell_values import at_old_threshold, in_mixed_gallery, with_blended_weights
from unibct.benchmark.result_reading import read_results


def test_a_value_is_that_of_each_seeds_own_cell(finished):
    _, results = finished
    cells = results.cells("open-class", "unibct-plus")
    searches = results.cross("open-class", "unibct-plus", "top-1")
    tar = at_old_threshold(results, "open-class", "unibct-plus", "scaled", "TAR")
    mean = in_mixed_gallery(results, "open-class", "unibct-plus", "raw", "top-1 mean")
    top = with_blended_weights(results, "open-class", "unibct-plus", "between→old", "top-1")
    written = [
        (cell["at_old_threshold"]["ways"]["scaled"]["TAR"] for cell in cells),
        (cell["mixed_galleries"]["mergings"]["raw"]["values"]["top-1 mean"] for cell in cells),
        (cell["tests"]["between→old"]["metrics"]["top-1"] for cell in cells),
    ]
    for measured, values in zip((tar, mean, top), written, strict=True):
        assert measured is not None
        assert measured.values.tolist() == pytest.approx(list(values))
        assert measured.samples.shape == searches.samples.shape
        assert (measured.samples.min(axis=1) <= measured.values).all()
        assert (measured.samples.max(axis=1) >= measured.values).all()


def test_there_is_no_value_if_one_seed_lacks_it(finished, tmp_path):
    benchmark, results = finished
    out = tmp_path / "copy"
    shutil.copytree(benchmark.workspace.out, out)
    path = out / "cells/open-class/unibct-plus/seed1/result.json"
    cell = json.loads(path.read_text())
    del cell["mixed_galleries"], cell["at_old_threshold"]
    del cell["tests"]["between→old"]
    path.write_text(json.dumps(cell))
    fewer = read_results(benchmark.workspace.grid, benchmark.jobs, out)
    for value, where in (
        (at_old_threshold, ("scaled", "TAR")),
        (in_mixed_gallery, ("raw", "top-1 mean")),
        (with_blended_weights, ("between→old", "top-1")),
    ):
        assert value(results, "open-class", "unibct-plus", *where) is not None
        assert value(fewer, "open-class", "unibct-plus", *where) is None
