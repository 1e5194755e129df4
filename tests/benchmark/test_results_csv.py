import csv
import io

import numpy as np
import pytest

from unibct.benchmark.cell_values import in_mixed_gallery
from unibct.benchmark.results_csv import as_csv
from unibct.evaluation.criterion import estimate


@pytest.fixture(scope="module")
def rows(finished):
    return list(csv.DictReader(io.StringIO(as_csv(finished[1]))))


def test_a_row_says_what_its_value_is_and_no_two_rows_say_the_same(finished, grid, rows):
    _, results = finished
    columns = ["data", "scenario", "method", "seed", "test", "metric", "value", "low", "high"]
    assert list(rows[0]) == columns
    keys = [tuple(row[column] for column in columns[:6]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {row["data"] for row in rows} == {grid.test}
    assert {row["scenario"] for row in rows} == {*grid.scenarios, "chain"}
    assert {row["method"] for row in rows} == {*grid.methods, "old", "free"}
    assert {row["seed"] for row in rows} == {str(seed) for seed in results.seeds}
    chain = {row["test"] for row in rows if row["scenario"] == "chain"}
    assert chain == {f"v{query}→v{gallery}" for query in (1, 2, 3) for gallery in (1, 2, 3)}
    tests = {row["test"] for row in rows if row["scenario"] != "chain"}
    assert tests == {
        "old→old", "new→old", "new→new", "blend→old", "mixed raw", "mixed standardised",
        "old at old threshold", "cross at old threshold", "mapped at old threshold",
        "scaled at old threshold", "between→old", "between→between",
    }  # fmt: skip


def test_every_value_of_every_job_is_there_with_its_interval(finished, rows):
    _, results = finished
    by_key = {
        (row["scenario"], row["method"], row["seed"], row["test"], row["metric"]): row
        for row in rows
    }

    def checked(folder, scenario, method, seed, test, kind="metrics", name=None):
        for metric, value in results.by_job[folder]["tests"][test][kind].items():
            row = by_key[scenario, method, str(seed), name or test, metric]
            assert float(row["value"]) == pytest.approx(value, abs=1e-6)
            samples = results.samples(folder, test, metric).astype(np.float64)
            ends = estimate(np.array([value]), samples[None], classes=results.query_classes)
            assert [float(row["low"]), float(row["high"])] == pytest.approx(
                [ends.low, ends.high], abs=1e-6
            )

    for seed in (0, 1):
        for scenario, old in (("extended-data", "images"), ("open-class", "classes")):
            checked(f"models/old-{old}-seed{seed}", scenario, "old", seed, "old→old")
            for method in ("none", "unibct-plus", "procrustes"):
                cell = f"cells/{scenario}/{method}/seed{seed}"
                for test in ("new→old", "new→new", "blend→old"):
                    checked(cell, scenario, method, seed, test)
                checked(cell, scenario, method, seed, "new→old", "flips")
        checked(f"models/free-open-class-seed{seed}", "open-class", "free", seed, "new→new")
        version = f"chains/unibct-plus/seed{seed}/v3"
        checked(version, "chain", "unibct-plus", seed, "v3→v1")
        first = f"models/old-images-seed{seed}"
        checked(first, "chain", "unibct-plus", seed, "old→old", name="v1→v1")
    assert by_key["open-class", "none", "0", "blend→old", "alpha"]["value"] == "0.500000"
    assert by_key["open-class", "none", "0", "blend→old", "alpha"]["low"] == ""
    assert by_key["open-class", "none", "0", "mixed raw", "chosen"]["value"] == "1.000000"
    mean = by_key["open-class", "unibct-plus", "1", "mixed standardised", "top-1 mean"]
    expected = in_mixed_gallery(
        results, "open-class", "unibct-plus", "standardised", "top-1 mean"
    ).values[1]
    assert float(mean["value"]) == pytest.approx(expected, abs=1e-6)
    assert float(mean["low"]) <= expected <= float(mean["high"])
    stored = results.by_job["cells/open-class/unibct-plus/seed1"]["at_old_threshold"]
    scaled = [
        by_key["open-class", "unibct-plus", "1", "scaled at old threshold", metric]
        for metric in ("TAR", "FAR", "score scale")
    ]
    expected = [*stored["ways"]["scaled"].values(), stored["score_scale"]]
    assert [float(row["value"]) for row in scaled] == pytest.approx(expected, abs=1e-6)
    assert float(scaled[0]["low"]) <= expected[0] <= float(scaled[0]["high"])
    assert scaled[2]["low"] == ""
    assert ("open-class", "none", "1", "scaled at old threshold", "TAR") not in by_key
