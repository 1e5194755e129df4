import json
import re

import numpy as np
import pytest
import torch

from unibct.embeddings.extraction import embed
from unibct.embeddings.recall import recall_at_1
from unibct.embeddings.store import open_embeddings
from unibct.evaluation.criterion import estimate
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.maps.vector_map import fit_vector_map
from unibct.models.model_folder import load_model


def test_every_cell_is_what_the_commands_would_give_by_hand(benchmark, results):
    workspace = benchmark.workspace
    test = workspace.test_images
    for seed in (0, 1):
        cell = workspace.out / f"cells/open-class/unibct-plus/seed{seed}"
        new = load_model(cell / "model")
        old = load_model(workspace.out / f"models/old-classes-seed{seed}" / "model")
        assert new.old_fingerprint == old.fingerprint
        sides = {"old": old, "new": new}
        vectors = {side: embed(model, test).vectors for side, model in sides.items()}
        by_hand = evaluate_embeddings(test.labels, **vectors)
        stored = json.loads((cell / "result.json").read_text())["tests"]
        assert stored["new→old"]["metrics"] == pytest.approx(by_hand.values["new→old"])
        assert stored["new→new"]["metrics"] == pytest.approx(by_hand.values["new→new"])
        flips = by_hand.flips.as_json()
        for rate, value in stored["new→old"]["flips"].items():
            assert value == pytest.approx(flips[rate])
            measured = results.cross("open-class", "unibct-plus", rate)
            values, samples = measured.values[[seed]], measured.samples[[seed]]
            one = estimate(values, samples, classes=measured.classes)
            ends = (max(one.low, 0), one.high)
            assert ends == pytest.approx(flips["intervals"][rate], abs=1e-5)
        for criterion in by_hand.compared:
            metric = criterion.metric
            gain = results.gain("open-class", "unibct-plus", metric)
            one = estimate(gain.values[[seed]], gain.samples[[seed]], classes=gain.classes)
            assert one.mean == pytest.approx(criterion.difference)
            assert (one.low, one.high) == pytest.approx((criterion.low, criterion.high), abs=1e-5)


def test_results_say_with_which_instructions_they_were_made(results):
    instructions = re.findall("CPU capability usage: (.+)", torch.__config__.show())[0]
    for result in results.by_job.values():
        assert f" {instructions}, " in result["made_by"]["machine"]


def test_a_map_is_fitted_to_the_free_model_and_leaves_its_self_test(benchmark, results):
    workspace = benchmark.workspace
    images = workspace.training_images("new:open-class", 0)
    free, old = (load_model(workspace.out / f"models/{n}-seed0" / "model") for n in
                 ("free-open-class", "old-classes"))  # fmt: skip
    sides = {"new": embed(free, images).vectors, "old": embed(old, images).vectors}
    fitted = fit_vector_map("procrustes", **sides, labels=images.labels)
    mapped = fitted(embed(free, workspace.test_images).vectors)
    cell = workspace.out / "cells/open-class/procrustes/seed0"
    stored = open_embeddings(cell / "embeddings")
    assert np.allclose(stored.vectors, mapped, atol=1e-5)
    adapted = load_model(cell / "model")
    assert stored.fingerprint == adapted.fingerprint != free.fingerprint
    assert adapted.old_fingerprint == old.fingerprint
    for metric in results.metrics:
        self_test = results.new_self("open-class", "procrustes", metric).values
        assert np.array_equal(self_test, results.free_self("open-class", metric).values)


def test_old_models_are_compared_with_raw_pixels(benchmark, results):
    workspace = benchmark.workspace
    for folder, result in results.by_job.items():
        assert ("old_model" in result) == folder.startswith("models/old-")
    folder, images = "models/old-classes-seed1", workspace.test_images
    expected = recall_at_1(workspace.vectors(folder), images.labels)
    assert results.by_job[folder]["old_model"]["recall_at_1"] == expected
    assert not (workspace.out / folder / "model" / "best").exists()
