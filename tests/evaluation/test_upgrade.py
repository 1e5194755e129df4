import json

import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes
from unibct.errors import UserError
from unibct.evaluation.directions import CROSS, NEW_SELF, OLD_SELF, REVERSED_CROSS
from unibct.evaluation.upgrade import evaluate_upgrade


def test_a_better_query_model_is_compatible_and_a_foreign_one_is_not():
    old, labels = noisy_classes(noise=1.3)
    better, _ = noisy_classes(noise=0.3, seed=1)
    good = evaluate_upgrade(old, better, labels, far=0.01, repeats=300)
    assert good.verdict == "compatible"
    assert all(c.low > 0 for c in good.criteria)
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(16, 16)))[0].astype(np.float32)
    foreign = evaluate_upgrade(old, better @ rotation, labels, free=better, far=0.01, repeats=300)
    assert foreign.verdict == "not compatible"
    assert foreign.tests["new→new"].top(1) == pytest.approx(good.tests["new→new"].top(1))
    assert foreign.tests["free→old"].top(1) == pytest.approx(good.tests["new→old"].top(1))
    assert evaluate_upgrade(old, old, labels, far=0.1, repeats=9).note is None
    assert (
        "TAR@1e-1 instead of TAR@1e-4: 30 classes"
        in evaluate_upgrade(old, old, labels, repeats=9).note
    )
    itself = evaluate_upgrade(old, old, labels, repeats=50)
    assert itself.verdict == "within noise"
    assert good.as_json()["verdict"] == "compatible"
    assert set(good.as_json()["tests"]) == {"old→old", "new→old", "old→new", "new→new"}


def test_the_threshold_rule_changes_the_reported_tars_alone():
    old, labels = noisy_classes(noise=1.3)
    new, _ = noisy_classes(noise=0.9, seed=1)
    strict, nearest = (
        evaluate_upgrade(old, new, labels, rule=rule, repeats=20) for rule in ("strict", "nearest")
    )
    test = nearest.tests["new→old"]
    tar = test.tar(nearest.far, rule="nearest")
    assert tar != test.tar(nearest.far)
    assert nearest.metrics("new→old")["TAR@1e-1"] == tar
    assert nearest.as_json()["tests"]["new→old"]["tar_at_far"]["0.1"] == tar
    assert nearest.criteria == strict.criteria
    assert "the ROC corner nearest to the rate" in nearest.note
    assert "nearest" not in strict.note
    assert strict.metrics("new→old")["top-1"] == nearest.metrics("new→old")["top-1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (np.ones((4, 2)), np.ones((4, 3)), "dimension"),
        (np.ones((3, 2)), np.ones((4, 2)), "3 embeddings"),
    ],
)
def test_bad_input_is_named(old, new, message):
    with pytest.raises(ValueError, match=message):
        evaluate_upgrade(old, new, [0, 0, 1, 1])


def test_another_dimension_is_compared_in_the_old_space():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    old, noise = (rng.normal(size=(12, 8))[labels] + s * rng.normal(size=(72, 8)) for s in (1, 0.2))
    new = rng.normal(size=(12, 5))[labels] + 0.1 * rng.normal(size=(72, 5))
    plain = evaluate_upgrade(old, noise, labels, repeats=50)
    result = evaluate_upgrade(old, new, labels, projected=noise, repeats=50, backfill_curves=True)
    for direction in (OLD_SELF, CROSS, REVERSED_CROSS):
        assert result.values[direction] == plain.values[direction]
    own = evaluate_upgrade(new, new, labels, repeats=50)
    assert result.values[NEW_SELF] == own.values[NEW_SELF]
    assert "has dimension 5 and the old one 8: tests between the two use" in result.note
    assert "dimension" not in (plain.note or "")
    with pytest.raises(UserError, match="dimension"):
        evaluate_upgrade(old, new, labels, repeats=50)


def test_what_a_team_decides_on():
    """Old clients, thresholds, flips and the curve are in the result and in its JSON."""
    old, labels = noisy_classes(noise=1.3)
    new, _ = noisy_classes(noise=0.3, seed=1)
    found = evaluate_upgrade(old, new, labels, repeats=100, backfill_curves=True)
    described = json.loads(json.dumps(found.as_json()))
    assert described["old_clients"]["verdict"] == found.old_clients_verdict
    clients = {c["metric"]: c["cross"] for c in described["old_clients"]["criteria"]}
    assert clients["top-1"] == described["tests"]["old→new"]["top-1"]
    assert set(described["at_old_threshold"]) == {"1e-2", "1e-3", "1e-4"}
    for row in described["at_old_threshold"].values():
        assert {"threshold", "old", "cross", "mapped"} <= set(row)
        assert {"tar", "far"} <= set(row["mapped"])
    flips = described["flips"]
    change = found.tests["new→old"].top(1) - found.tests["old→old"].top(1)
    assert flips["pfr"] - flips["nfr"] == pytest.approx(change)
    assert set(described["backfill_curve"]) == {"random", "farthest"}
    assert len(described["backfill_curve"]["random"]["top-1"]) == 22
    assert evaluate_upgrade(old, new, labels, repeats=10).backfill_curves == {}
