import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.evaluation.noisy_classes import noisy_classes
from tests.evaluation.test_mixed_gallery import naive_right, two_searches
from tests.tiny_models import LARGEST_SHIFT
from unibct.benchmark.cells import (
    BELOW_LINE,
    BELOW_START,
    HALF_NFR,
    HALF_TOP_1,
    MEAN,
    MERGINGS,
    AtThreshold,
    MixedGallery,
    cell_score_scale,
    choose_for_cell,
    curve_values,
    half_tar,
    sample_name,
    threshold_name,
    weight_tests,
)
from unibct.benchmark.execution import run_job
from unibct.benchmark.results import read_results
from unibct.benchmark.run import plan_benchmark, run_benchmark
from unibct.benchmark.workspace import RESULT_FILE
from unibct.data.readers import open_images
from unibct.embeddings.extraction import embed
from unibct.embeddings.score_scale import score_scale
from unibct.errors import UserError
from unibct.evaluation.blending import choose_alpha
from unibct.evaluation.bootstrap import ClassDraws, class_draws
from unibct.evaluation.criterion import estimate
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.mixed_gallery import HALF, POINTS, MixedScores, fitted_kinds
from unibct.evaluation.old_threshold import at_old_thresholds
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.evaluation.weight_choice import choose_weights
from unibct.models.blended_weights import blend_weights
from unibct.models.model_folder import load_model
from unibct.report.pages import command, render_markdown, write_benchmark_report

OLD, FREE = "models/old-classes-seed0", "models/free-open-class-seed0"
TRAINED, MAPPED = (f"cells/open-class/{method}/seed0" for method in ("unibct-plus", "procrustes"))


@pytest.fixture
def trained_again(finished, tmp_path):
    """A copy of a finished benchmark, and a function that replaces one of its models."""
    source, out = finished[0].workspace.out, tmp_path / "copy"
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("cache"))

    def train_again(folder):
        shutil.rmtree(out / folder)
        shutil.copytree(source / folder.replace("seed0", "seed1"), out / folder)

    return out, train_again


def job_of(benchmark, folder):
    return next(job for job in benchmark.jobs if job.folder == folder)


@pytest.mark.parametrize(
    ("replaced", "refused"),
    [
        (OLD, "cells/open-class/none/seed0"),
        (FREE, "cells/open-class/none/seed0"),
        ("models/old-images-seed0", "cells/extended-data/none/seed0"),
        ("chains/unibct-plus/seed0/v2", "chains/unibct-plus/seed0/v3"),
    ],
)
def test_a_report_refuses_what_was_tested_with_another_model(
    finished, trained_again, replaced, refused
):
    benchmark, (out, train_again) = finished[0], trained_again
    train_again(replaced)
    with pytest.raises(UserError, match=rf"{refused} was tested with a model.*; remove .* and run"):
        read_results(benchmark.workspace.grid, benchmark.jobs, out)


def test_an_unfinished_cell_is_not_taken_up_with_another_old_model(finished, trained_again):
    benchmark, (out, train_again) = finished[0], trained_again
    workspace = replace(benchmark.workspace, out=out)
    train_again(OLD)
    for folder in (TRAINED, MAPPED):
        (out / folder / "result.json").unlink()
    with pytest.raises(UserError, match="its old_model is"):
        run_job(workspace, job_of(benchmark, TRAINED))
    run_job(workspace, job_of(benchmark, MAPPED))  # it is fitted again, in seconds
    old, adapted = (load_model(out / name / "model") for name in (OLD, MAPPED))
    assert adapted.old_fingerprint == old.fingerprint


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
    with pytest.raises(UserError, match=r"was made without validation images; choose another"):
        plan_benchmark(chooser, out, device="cpu")
    for path in (*out.rglob("result.json"), out / "benchmark.json"):
        path.unlink()  # as if it had been stopped after the trainings
    files = (path for path in out.rglob("model/*") if path.is_file())
    models = {path: path.stat().st_mtime_ns for path in files if "procrustes" not in path.parts}
    again = plan_benchmark(chooser, out, workers=1, device="cpu")
    results = run_benchmark(again)
    assert {path: path.stat().st_mtime_ns for path in models} == models, "nothing is trained"
    images = open_images(validation_folder)
    old, new = (
        embed(load_model(out / folder / "model"), images).vectors
        for folder in ("models/old-classes-seed1", "cells/open-class/unibct-plus/seed1")
    )
    cell = results.by_job["cells/open-class/unibct-plus/seed1"]
    expected = choose_alpha(images.labels, old=old, new=new, chosen_on=str(validation_folder))
    assert cell["tests"]["blend→old"]["alpha"] == expected.alpha
    assert cell["tests"]["blend→old"]["chosen_on"] == json.loads(json.dumps(expected.as_json()))
    scale = score_scale(new, old, images.labels)
    assert cell["at_old_threshold"]["score_scale"] == pytest.approx(scale, rel=1e-5)
    means = cell["mixed_galleries"]["chosen_on"]["top-1 means"]
    assert means[cell["mixed_galleries"]["chosen"]] == max(means.values())
    for name in ("new→old", "new→new"):
        test = before.by_job["cells/open-class/unibct-plus/seed1"]["tests"][name]
        assert cell["tests"][name] == test, "the other tests stay as they were"
    assert cell["cost"] == before.by_job["cells/open-class/unibct-plus/seed1"]["cost"]
    text = render_markdown(results)
    assert f"chose α on the validation classes of {validation_folder}" in text
    assert "score scale, which was measured on validation images" in text
    assert "| raw (chosen" in text or "| standardised (chosen" in text
    assert f"--validation {validation_folder}" in command(results.grid)
    write_benchmark_report(results, again, tmp_path / "report")

    plain = replace(chooser, validation=None)
    with pytest.raises(UserError, match="was made with validation images; give them as"):
        plan_benchmark(plain, out, device="cpu")
    stored = [path.stat().st_mtime_ns for path in out.rglob("validation/embeddings.json")]
    job = next(job for job in again.jobs if job.folder == cell["job"])
    assert choose_for_cell(again.workspace, job).means == means
    assert [p.stat().st_mtime_ns for p in out.rglob("validation/embeddings.json")] == stored
    assert len(stored) == 8, "old and free model, plus and procrustes, of two seeds"


def test_validation_classes_are_others_than_those_of_training_and_test(grid):
    for name in (grid.data, grid.test):
        with pytest.raises(UserError, match=r"classes in common.*validation classes must be other"):
            plan_benchmark(replace(grid, validation=name), "unused", device="cpu")


@pytest.fixture(scope="module")
def gallery():
    cross, new_self = two_searches(classes=20)
    old_self = two_searches(seed=7, classes=20)[0]  # any other test of the same queries
    draws, scores = class_draws(cross, repeats=50), MixedScores.of_tests(cross, new_self)
    return MixedGallery(old_self, scores, draws, 0.1), cross, new_self


def test_mean_and_dips_of_a_curve_by_hand():
    # Of ten queries 6 are right at the start, 4 at the fifth point, and 8 at the end.
    right = np.zeros((10, POINTS), dtype=bool)
    right[:6] = True
    right[4:6, 5] = False
    right[:8, -1] = True
    curve, shares = right.mean(axis=0), np.arange(POINTS) / (POINTS - 1)
    values = curve_values(curve[None], curve, shares)
    assert values[MEAN] == pytest.approx((19 * 0.6 + 0.4 + 0.8) / 21)
    assert values[BELOW_START] == pytest.approx(-0.2)
    # The line from 0.6 to 0.8 is at 0.65 there, and at 0.79 one point before the end.
    assert values[BELOW_LINE] == pytest.approx(0.4 - 0.65)
    drawn = curve_values(np.stack([curve, curve[::-1]]), curve, shares)
    assert drawn[BELOW_START] == pytest.approx([-0.2, 0.6 - 0.8]), "at the same share"


def test_values_are_those_of_a_naive_search(gallery):
    mixed, cross, new_self = gallery
    order = mixed.scores.random_order(1)
    for calibration in fitted_kinds(MERGINGS, cross.pairs, new_self.pairs).values():
        found = mixed.measured(order, calibration)
        values = found["values"]
        assert found["top-1"][0] == cross.top(1)
        assert found["top-1"][-1] == new_self.top(1)
        assert values[MEAN] == pytest.approx(np.mean(found["top-1"]))
        remade = set(order[:10].tolist())
        right = np.array([
            naive_right(mixed.scores.old_rows[q], mixed.scores.new_rows[q], label, remade,
                        calibration)
            for q, label in enumerate(mixed.scores.query_classes)
        ])  # fmt: skip
        assert values[HALF_TOP_1] == found["top-1"][HALF] == pytest.approx(right.mean())
        flipped = (mixed.old_self.ranks == 0) & ~right
        assert values[HALF_NFR] == pytest.approx(flipped.mean())
        is_new = np.isin(np.arange(20), list(remade))
        scores = np.where(is_new, mixed.scores.new_rows, calibration(mixed.scores.old_rows))
        is_mate = mixed.scores.query_classes[:, None] == np.arange(20)
        impostors = np.sort(scores[~is_mate])[::-1]
        threshold = impostors[int(0.1 * len(impostors))]
        assert values[half_tar(0.1)] == pytest.approx((scores[is_mate] > threshold).mean())


def test_drawing_every_class_once_gives_the_values_themselves(gallery):
    mixed, cross, new_self = gallery
    draws = ClassDraws(np.ones((2, mixed.draws.shape[1]), int))
    once = MixedGallery(mixed.old_self, mixed.scores, draws, mixed.far)
    order = mixed.scores.random_order(1)
    for calibration in fitted_kinds(MERGINGS, cross.pairs, new_self.pairs).values():
        values = once.measured(order, calibration)["values"]
        for name, sampled in once.sampled(order, calibration).items():
            assert sampled == pytest.approx(np.full(2, values[name])), name


def test_the_values_are_those_of_an_evaluation_at_the_same_rate():
    old, labels = noisy_classes(classes=60, images=8, noise=1.0)
    new, _ = noisy_classes(classes=60, images=8, noise=0.7, seed=1)
    split = split_gallery(labels)
    old_self, cross = search_test(old, old, split), search_test(new, old, split)
    draws = class_draws(cross, repeats=50)
    row = at_old_thresholds(old_self, cross, draws, score_scale=1.1)[0]
    fixed = AtThreshold(old_self, cross, row.far, 1.1)
    found = fixed.measured()
    assert (found["threshold"], found["score_scale"]) == (row.threshold, 1.1)
    for way in ("old", "cross", "mapped", "scaled"):
        expected = getattr(row, way)
        assert found["ways"][way] == {"TAR": expected.tar, "FAR": expected.far}
        sampled = fixed.sampled(draws)[way]
        over = estimate(np.array([expected.far]), sampled["FAR"][None], classes=60)
        assert expected.far_interval == pytest.approx((max(over.low, 0), over.high))
        once = fixed.sampled(ClassDraws(np.ones((1, draws.shape[1]), int)))[way]
        assert (once["TAR"][0], once["FAR"][0]) == pytest.approx((expected.tar, expected.far))
    without = AtThreshold(old_self, cross, row.far, None).measured()
    assert list(without["ways"]) == ["old", "cross", "mapped"]


def test_a_cell_keeps_the_scale_of_its_model(benchmark, results):
    workspace = benchmark.workspace
    for method in ("unibct-plus", "procrustes"):
        job = job_of(benchmark, f"cells/open-class/{method}/seed1")
        cell = results.by_job[job.folder]["at_old_threshold"]
        assert cell["score_scale"] == workspace.model(job.folder).score_scale > 0
    free = job_of(benchmark, "cells/open-class/none/seed1")
    assert cell_score_scale(workspace, free) is None
    stored = results.by_job[free.folder]
    assert stored["at_old_threshold"]["score_scale"] is None
    assert "scaled" not in stored["at_old_threshold"]["ways"]
    assert threshold_name("scaled") == "scaled at old threshold"


def test_a_cell_whose_validation_scores_a_factor_would_lift_has_no_scale(monkeypatch):
    monkeypatch.setattr("unibct.embeddings.score_scale._LARGEST_SHIFT", LARGEST_SHIFT)
    old, labels = noisy_classes(classes=20, images=5)
    cones = {"old": old + 6, "cell": old + 3}  # all scores are near 1
    workspace = SimpleNamespace(
        validation_images=SimpleNamespace(labels=labels), validation_vectors=cones.get
    )
    job = SimpleNamespace(folder="cell", training=SimpleNamespace(old="old"))
    assert cell_score_scale(workspace, job) is None
    cones["cell"] = cones["old"]
    assert cell_score_scale(workspace, job) == pytest.approx(1)


CELL, WEIGHT_TESTS_OLD = "cells/open-class/unibct-plus/seed1", "models/old-classes-seed1"


def test_blended_weights_are_what_a_measurement_by_hand_gives(benchmark, results):
    workspace = benchmark.workspace
    images = workspace.test_images
    model = blend_weights(workspace.model(WEIGHT_TESTS_OLD), workspace.model(CELL), 0.5)
    rows = embed(model, images).rows_of(images)
    for name, gallery in (
        ("between→old", workspace.vectors(WEIGHT_TESTS_OLD)),
        ("between→between", rows),
    ):
        stored = results.by_job[CELL]["tests"][name]
        by_hand = search_test(rows, gallery, workspace.split)
        assert stored["metrics"] == pytest.approx(measured_metrics(by_hand, [workspace.far]))
        assert (stored["alpha"], stored["chosen_on"]) == (0.5, None)


def test_the_share_is_chosen_on_validation_images(benchmark):
    grid = replace(benchmark.workspace.grid, validation="glyphs:val")
    workspace, job = replace(benchmark.workspace, grid=grid), job_of(benchmark, CELL)
    measured = weight_tests(workspace, job)
    images = workspace.validation_images
    old, new = workspace.model(WEIGHT_TESTS_OLD), workspace.model(CELL)
    choice = choose_weights(images, old=old, new=new, alphas=np.arange(5, 11) / 10)
    assert measured.alpha == pytest.approx(choice.alpha)


@pytest.mark.parametrize("method", ["none", "procrustes"])
def test_other_cells_have_none(benchmark, results, method):
    folder = f"cells/open-class/{method}/seed1"
    assert weight_tests(benchmark.workspace, job_of(benchmark, folder)) is None
    assert "between→old" not in results.by_job[folder]["tests"]


@pytest.mark.parametrize("method", ["unibct-plus", "procrustes"])
def test_blended_queries_are_what_an_evaluation_by_hand_would_give(benchmark, results, method):
    workspace = benchmark.workspace
    cell = f"cells/open-class/{method}/seed1"
    old = workspace.vectors("models/old-classes-seed1")
    new = workspace.vectors(cell)
    by_hand = evaluate_embeddings(workspace.test_images.labels, old=old, new=new)
    stored = json.loads((workspace.out / cell / RESULT_FILE).read_text())["tests"]["blend→old"]
    assert stored["metrics"] == pytest.approx(by_hand.values["blend→old"])
    assert (stored["alpha"], stored["chosen_on"]) == (0.5, None)
    assert stored["query"] == cell
    old_self, cross = (results.old_self, ()), (results.cross, (method,))
    for gains, (other, name) in (
        (by_hand.blended_queries.minus_old_self, old_self),
        (by_hand.blended_queries.minus_cross, cross),
    ):
        for gain in gains:
            blended = results.in_cell("open-class", method, "blend→old", gain.metric)
            difference = blended - other("open-class", *name, gain.metric)
            values, samples = difference.values[[1]], difference.samples[[1]]
            one = estimate(values, samples, classes=difference.classes)
            assert one.mean == pytest.approx(gain.difference)
            assert (one.low, one.high) == pytest.approx((gain.low, gain.high), abs=1e-5)


def test_a_mixed_gallery_begins_at_the_cross_test_and_ends_at_the_new_self_test(benchmark, results):
    for method in ("none", "unibct-plus", "procrustes"):
        entry = results.by_job[f"cells/extended-data/{method}/seed0"]["mixed_galleries"]
        assert (entry["chosen"], entry["chosen_on"]) == ("raw", None)
        assert list(entry["mergings"]) == ["raw", "standardised"]
        for merging in entry["mergings"].values():
            ends = [
                test("extended-data", method, "top-1").values[0]
                for test in (results.cross, results.new_self)
            ]
            assert [merging["top-1"][0], merging["top-1"][-1]] == pytest.approx(ends)
    old = benchmark.workspace.vectors("models/old-images-seed0")
    stored = results.old_self("extended-data", "top-1").values[0]
    assert search_test(old, old, benchmark.workspace.split).top(1) == pytest.approx(stored)


def test_only_cells_have_more_than_their_tests(results):
    for folder, result in results.by_job.items():
        assert ("mixed_galleries" in result) == folder.startswith("cells/")
        assert ("blend→old" in result["tests"]) == folder.startswith("cells/")
    assert sample_name("mixed raw", "top-1 mean") == "mixed raw/top-1 mean"
