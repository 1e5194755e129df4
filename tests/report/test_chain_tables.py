import re
from dataclasses import replace

import numpy as np
import pytest

from unibct.evaluation.search_test import search_test
from unibct.report.chain_tables import chain_averages, chain_gain_table, chain_tables


def test_a_chain_tests_all_pairs_of_versions(finished):
    benchmark, results = finished
    workspace = benchmark.workspace
    folders = ["models/old-images-seed0"] + [f"chains/unibct-plus/seed0/v{v}" for v in (2, 3)]
    vectors = [workspace.vectors(folder) for folder in folders]
    matrix = np.zeros((3, 3))
    for q in range(3):
        for g in range(3):
            matrix[q, g] = search_test(vectors[q], vectors[g], workspace.split).top(1)
            stored = results.between_versions("unibct-plus", q + 1, g + 1, "top-1").values[0]
            assert stored == pytest.approx(matrix[q, g])
    average, share = chain_averages(results, "unibct-plus")
    seeds = [
        np.mean([results.between_versions("unibct-plus", q, g, "top-1").values[s]
                 for q in (1, 2, 3) for g in range(1, q + 1)]) for s in (0, 1)
    ]  # fmt: skip
    assert average.mean == pytest.approx(np.mean(seeds))
    assert re.fullmatch(r"\d of 6", share)
    gains = chain_gain_table(results, "unibct-plus")
    assert [row[0].text for row in gains.rows] == [
        "v2→v1 − v1→v1", "v3→v1 − v1→v1", "v3→v2 − v2→v2",
        "v1→v2 − v1→v1", "v1→v3 − v1→v1", "v2→v3 − v2→v2",
    ]  # fmt: skip
    old_clients = [
        results.between_versions("unibct-plus", 1, g, "top-1").values.mean() for g in (3, 1)
    ]
    assert gains.heads[1] == "top-1"
    assert float(gains.rows[4][1].text) == pytest.approx(
        100 * (old_clients[0] - old_clients[1]), abs=0.006
    )


def test_a_chain_that_begins_with_a_weak_model_says_so(finished):
    _, results = finished
    weak = {"recall_at_1": 0.1, "pixel_recall_at_1": 0.1, "too_weak": True}
    for is_weak, ending in ((True, "hardly better than raw pixels: seed 0, 1."), (False, "of 6.")):
        by_job = {
            folder: result | {"old_model": weak | {"too_weak": is_weak}}
            if folder.startswith("models/old-images")
            else result
            for folder, result in results.by_job.items()
        }
        changed = replace(results, by_job=by_job)
        assert chain_tables(changed)[0].note.endswith(ending)
