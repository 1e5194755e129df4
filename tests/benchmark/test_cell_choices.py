import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.models.cases import small_model
from unibct.benchmark.cell_choices import choose_for_cell, validation_vectors
from unibct.benchmark.run import plan_benchmark, run_benchmark
from unibct.data.readers.table import open_images
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.score_scale import score_scale
from unibct.errors import UserError
from unibct.evaluation.blending import choose_alpha
from unibct.models.folder import load_model
from unibct.report.pages.benchmark import command, render_markdown, write_benchmark_report


@pytest.fixture(scope="module")
def validation_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("validation")
    images = open_images("glyphs:val")
    for row in np.flatnonzero((images.labels >= 20) & (images.labels < 26)):
        path = root / f"validation {images.labels[row]}" / f"{row:04}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(images.read(images.ids[row])).save(path)
    return root


def test_cells_choose_on_other_classes_without_training_again(
    finished, grid, validation_folder, tmp_path
):
    benchmark, before = finished
    out = tmp_path / "copy"
    shutil.copytree(benchmark.workspace.out, out)
    chooser = replace(
        grid, validation=str(validation_folder), scenarios=("open-class",), chain_methods=()
    )
    with pytest.raises(UserError, match=r"was made without validation images; --measure-again"):
        plan_benchmark(chooser, out, device="cpu")
    models = {path: path.stat().st_mtime_ns for path in out.rglob("model/*") if path.is_file()}
    again = plan_benchmark(chooser, out, workers=1, device="cpu", measure_again=True)
    results = run_benchmark(again)
    assert {path: path.stat().st_mtime_ns for path in models} == models, "nothing is trained"
    images = open_images(validation_folder)
    old, new = (
        embed_images(load_model(out / folder / "model"), images).vectors
        for folder in ("models/old-classes-seed1", "cells/open-class/unibct-plus/seed1")
    )
    cell = results.by_job["cells/open-class/unibct-plus/seed1"]
    expected = choose_alpha(old, new, images.labels, chosen_on=str(validation_folder))
    assert cell["tests"]["blend→old"]["alpha"] == expected.alpha
    assert cell["tests"]["blend→old"]["chosen_on"] == json.loads(json.dumps(expected.as_json()))
    scale = score_scale(new, old, images.labels)
    assert cell["at_old_threshold"]["score_scale"] == pytest.approx(scale, rel=1e-5)
    means = cell["mixed_galleries"]["chosen_on"]["top-1 means"]
    assert means[cell["mixed_galleries"]["chosen"]] == max(means.values())
    for name in ("new→old", "new→new"):
        test = before.by_job["cells/open-class/unibct-plus/seed1"]["tests"][name]
        assert cell["tests"][name] == test, "the other tests stay as they were"
    assert "measured_again_by" in cell
    assert cell["cost"] == before.by_job["cells/open-class/unibct-plus/seed1"]["cost"]
    text = render_markdown(results)
    assert f"chose α on the validation classes of {validation_folder}" in text
    assert "score scale, which was measured on validation images" in text
    assert "| raw (chosen" in text or "| standardised (chosen" in text
    assert f"--validation {validation_folder}" in command(results.grid)
    write_benchmark_report(results, again, tmp_path / "report")

    plain = replace(chooser, validation=None)
    with pytest.raises(UserError, match="was made with validation images; give them with"):
        plan_benchmark(plain, out, device="cpu")
    stored = [path.stat().st_mtime_ns for path in out.rglob("validation/embeddings.json")]
    job = next(job for job in again.jobs if job.folder == cell["job"])
    choose_for_cell(again.workspace, job, images)
    assert [p.stat().st_mtime_ns for p in out.rglob("validation/embeddings.json")] == stored
    assert len(stored) == 8, "old and free model, plus and procrustes, of two seeds"


def test_changed_validation_images_are_embedded_again(glyph_classes, tmp_path):
    model = small_model()
    workspace = SimpleNamespace(out=tmp_path, model=lambda _: model, embeddings=lambda _: model)
    settings = tmp_path / "benchmark.json"

    def vectors(images):
        return validation_vectors(workspace, "models/old", images)

    def darker(image_id):
        return glyph_classes.read(image_id) // 2

    settings.write_text('{"validation_pixels": "before"}')
    before = vectors(glyph_classes)
    changed = replace(glyph_classes, read=darker)
    assert np.array_equal(vectors(changed), before), "they are kept: nobody says that they changed"
    settings.write_text('{"validation_pixels": "after"}')
    expected = embed_images(model, changed).vectors
    assert not np.allclose(expected, before)
    assert np.allclose(vectors(changed), expected, atol=1e-6)


def test_validation_classes_are_others_than_those_of_training_and_test(grid):
    for name in (grid.data, grid.test):
        with pytest.raises(UserError, match=r"classes in common.*validation classes must be other"):
            plan_benchmark(replace(grid, validation=name), "unused", device="cpu")
