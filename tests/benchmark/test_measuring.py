import json

import pytest

from unibct.benchmark.measuring import sample_name
from unibct.benchmark.workspace import RESULT_FILE
from unibct.evaluation.criterion import estimate
from unibct.evaluation.search_test import search_test
from unibct.evaluation.upgrade import evaluate_upgrade


@pytest.mark.parametrize("method", ["unibct-plus", "procrustes"])
def test_blended_queries_are_what_an_evaluation_by_hand_would_give(finished, method):
    benchmark, results = finished
    workspace = benchmark.workspace
    cell = f"cells/open-class/{method}/seed1"
    old = workspace.vectors("models/old-classes-seed1")
    new = workspace.vectors(cell)
    by_hand = evaluate_upgrade(old, new, workspace.test_images.labels)
    stored = json.loads((workspace.out / cell / RESULT_FILE).read_text())["tests"]["blend→old"]
    assert stored["metrics"] == pytest.approx(by_hand.metrics("blend→old"))
    assert (stored["alpha"], stored["chosen_on"]) == (0.5, None)
    assert stored["query"] == cell
    for gains, other in (
        (by_hand.blended_queries.minus_old_self, results.old_self),
        (by_hand.blended_queries.minus_cross, None),
    ):
        for gain in gains:
            blended = results.blended("open-class", method, gain.metric)
            before = (
                other("open-class", gain.metric)
                if other is not None
                else results.cross("open-class", method, gain.metric)
            )
            difference = blended - before
            one = estimate(
                difference.values[[1]], difference.samples[[1]], classes=difference.classes
            )
            assert one.mean == pytest.approx(gain.difference)
            assert (one.low, one.high) == pytest.approx((gain.low, gain.high), abs=1e-5)


def test_a_mixed_gallery_begins_at_the_cross_test_and_ends_at_the_new_self_test(finished):
    benchmark, results = finished
    for method in ("none", "unibct-plus", "procrustes"):
        entry = results.by_job[f"cells/extended-data/{method}/seed0"]["mixed_galleries"]
        assert (entry["chosen"], entry["chosen_on"]) == ("raw", None)
        assert list(entry["mergings"]) == ["raw", "standardised"]
        for merging in entry["mergings"].values():
            ends = (
                results.cross("extended-data", method, "top-1").values[0],
                results.new_self("extended-data", method, "top-1").values[0],
            )
            assert (merging["top-1"][0], merging["top-1"][-1]) == pytest.approx(ends)
    old = benchmark.workspace.vectors("models/old-images-seed0")
    assert search_test(old, old, benchmark.workspace.split).top(1) == pytest.approx(
        results.old_self("extended-data", "top-1").values[0]
    )


def test_only_cells_have_more_than_their_tests(finished):
    _, results = finished
    for folder, result in results.by_job.items():
        assert ("mixed_galleries" in result) == folder.startswith("cells/")
        assert ("blend→old" in result["tests"]) == folder.startswith("cells/")
    assert sample_name("mixed raw", "top-1 mean") == "mixed raw/top-1 mean"
