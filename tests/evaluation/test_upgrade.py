import json
import tracemalloc

import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes, noisy_pair
from unibct.data.training_classes import training_classes
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.evaluation import bootstrap, impostors, score_table
from unibct.evaluation import identification as ranking
from unibct.evaluation.search_test import BLEND, CROSS, NEW_SELF, OLD_SELF, REVERSED_CROSS
from unibct.evaluation.upgrade import evaluate_embeddings


def test_a_better_query_model_is_compatible_and_a_foreign_one_is_not():
    pair = noisy_pair()
    good = evaluate_embeddings(**pair, far=0.01, repeats=300)
    assert good.verdict == good.as_json()["verdict"] == "compatible"
    assert all(c.low > 0 for c in good.criteria)
    assert {*good.as_json()["tests"]} == {OLD_SELF, CROSS, REVERSED_CROSS, NEW_SELF, BLEND}
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(16, 16)))[0].astype(np.float32)
    rotated = {"new": pair["new"] @ rotation, "free": pair["new"]}
    foreign = evaluate_embeddings(**pair | rotated, far=0.01, repeats=300)
    assert foreign.verdict == "not compatible"
    assert foreign.tests["new→new"].top(1) == pytest.approx(good.tests["new→new"].top(1))
    assert foreign.tests["free→old"].top(1) == pytest.approx(good.tests["new→old"].top(1))
    same = pair | {"new": pair["old"]}
    unknown = "whether a model was trained on test classes is unknown: arrays do not say"
    only_if = "the verdict holds for new classes only if no model was trained on those of the test"
    assert evaluate_embeddings(**same, far=0.1, repeats=9).note == f"{unknown}; {only_if}"
    itself = evaluate_embeddings(**same, repeats=50)
    assert "TAR@1e-1 instead of TAR@1e-4: 30 classes" in itself.note
    assert itself.verdict == "within noise"


def test_the_threshold_rule_changes_the_reported_tars_alone():
    strict, nearest = (
        evaluate_embeddings(**noisy_pair(new_noise=0.9), threshold_rule=rule, repeats=20)
        for rule in ("strict", "nearest")
    )
    test = nearest.tests["new→old"]
    tar = test.tar(nearest.far, rule="nearest")
    assert tar != test.tar(nearest.far)
    assert nearest.values["new→old"]["TAR@1e-1"] == tar
    assert nearest.as_json()["tests"]["new→old"]["tar_at_far"]["0.1"] == tar
    assert nearest.criteria == strict.criteria
    assert "the ROC corner nearest to the rate" in nearest.note
    assert "nearest" not in strict.note
    assert strict.values["new→old"]["top-1"] == nearest.values["new→old"]["top-1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (np.ones((4, 2)), np.ones((4, 3)), "dimension"),
        (np.ones((3, 2)), np.ones((4, 2)), "3 embeddings"),
    ],
)
def test_bad_input_is_named(old, new, message):
    with pytest.raises(ValueError, match=message):
        evaluate_embeddings([0, 0, 1, 1], old=old, new=new)


def test_classes_that_never_query_do_not_make_a_rate_measurable():
    old, labels = noisy_classes(noise=1.3)
    with pytest.raises(ValueError, match="repeats must be at least 1, not 0"):
        evaluate_embeddings(labels, old=old, new=old, repeats=0)
    rows = np.r_[np.flatnonzero(labels < 3), [np.argmax(labels == c) for c in range(3, 30)]]
    result = evaluate_embeddings(labels[rows], old=old[rows], new=old[rows], repeats=9)
    assert "13 classes' worth of pairs (3 of 30 have queries) are too few" in result.note
    assert "only 3 classes have queries" in result.note
    assert "worth of pairs" not in evaluate_embeddings(labels, old=old, new=old, repeats=9).note


@pytest.mark.parametrize(("classes", "verdict"), [(9, "within noise"), (10, "compatible")])
def test_a_verdict_needs_ten_classes(classes, verdict):
    result = evaluate_embeddings(**noisy_pair(1.8, classes=classes, images=40), repeats=100)
    assert all(criterion.low > 0 for criterion in result.criteria)
    assert result.verdict == verdict
    assert {criterion.verdict for criterion in result.criteria} == {verdict}
    assert result.blended_queries.verdict == verdict
    assert {criterion.classes for criterion in result.old_clients} == {classes}
    assert result.as_json()["verdict"] == verdict
    assert ("so differences count as within noise; test on 10" in result.note) == (classes < 10)


def test_another_dimension_is_compared_in_the_old_space():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    old, noise = (rng.normal(size=(12, 8))[labels] + s * rng.normal(size=(72, 8)) for s in (1, 0.2))
    new = rng.normal(size=(12, 5))[labels] + 0.1 * rng.normal(size=(72, 5))
    plain = evaluate_embeddings(labels, old=old, new=noise, repeats=50)
    sides = {"old": old, "new": new, "projected": noise}
    result = evaluate_embeddings(labels, **sides, repeats=50, backfill_curve=True)
    for direction in (OLD_SELF, CROSS, REVERSED_CROSS, BLEND):
        assert result.values[direction] == plain.values[direction]
    own = evaluate_embeddings(labels, old=new, new=new, repeats=50)
    assert result.values[NEW_SELF] == own.values[NEW_SELF]
    assert "has dimension 5 and the old one 8: tests between the two use" in result.note
    assert "dimension" not in (plain.note or "")
    with pytest.raises(UserError, match="dimension"):
        evaluate_embeddings(labels, old=old, new=new, repeats=50)


def test_what_a_team_decides_on():
    """Old clients, thresholds, flips and the curve are in the result and in its JSON."""
    pair = noisy_pair()
    found = evaluate_embeddings(**pair, repeats=100, backfill_curve=True, score_scale=1.25)
    described = json.loads(json.dumps(found.as_json()))
    assert described["score_scale"] == 1.25
    assert described["old_clients"]["verdict"] == found.old_clients_verdict
    clients = {c["metric"]: c["cross"] for c in described["old_clients"]["criteria"]}
    assert clients["top-1"] == described["tests"]["old→new"]["top-1"]
    assert set(described["at_old_threshold"]) == {"1e-2", "1e-3", "1e-4"}
    for row in described["at_old_threshold"].values():
        assert {"threshold", "old", "cross", "mapped", "scaled"} <= set(row)
        assert row["mapped"] is None or {"tar", "far"} <= set(row["mapped"])
        assert {"tar", "far", "far_interval"} == set(row["scaled"])
    flips = described["flips"]
    change = found.tests["new→old"].top(1) - found.tests["old→old"].top(1)
    assert flips["pfr"] - flips["nfr"] == pytest.approx(change)
    assert set(described["backfill_curve"]) == {"random", "farthest"}
    assert len(described["backfill_curve"]["random"]["top-1"]) == 22
    plain = evaluate_embeddings(**pair, repeats=10)
    assert plain.backfill_curves == {}
    assert plain.score_scale is None


@pytest.mark.parametrize("mode", ["templates", "images"])
def test_backfill_curves_lead_from_the_cross_test_to_the_self_test(mode):
    pair = noisy_pair(new_noise=0.6, images=8)
    result = evaluate_embeddings(**pair, repeats=10, gallery_mode=mode, backfill_curve=True)
    for curve in result.backfill_curves.values():
        for place, test in ((0, CROSS), (-1, NEW_SELF)):
            assert {m: v[place] for m, v in curve.values.items()} == result.values[test]
        assert curve.old_self == result.values[OLD_SELF]


def embeddings_of(vectors, labels, trained_on):
    names = tuple(f"class {label}" for label in range(labels.max() + 1))
    ids = tuple(f"{row}" for row in range(len(labels)))
    known = {"class_source": None, "training_classes": training_classes(trained_on, None)}
    return Embeddings(vectors, ids, labels, names, "model", **known)


def test_the_verdict_is_over_classes_that_no_model_was_trained_on():
    """29 of 60 classes seen, where the new model is much better; elsewhere it is a bit worse."""
    old, labels = noisy_classes(60, noise=1.3)
    is_seen = labels < 29
    new = np.where(is_seen[:, None], *(noisy_classes(60, noise=n, seed=1)[0] for n in (0.3, 1.4)))
    seen_names = [f"class {label}" for label in range(29)]
    nobody, trained = (embeddings_of(old, labels, names) for names in (["x"], seen_names))
    free, learnt = (embeddings_of(new, labels, names) for names in (["x"], seen_names))
    of_all = evaluate_embeddings(old=nobody, new=free, repeats=200)
    assert of_all.verdict == "compatible"
    assert (of_all.seen.basis, of_all.seen_values) == ("unseen", {})
    rows = {"unseen": np.flatnonzero(~is_seen), "seen": np.flatnonzero(is_seen)}
    alone = {
        name: evaluate_embeddings(
            labels[part] - labels[part][0], old=old[part], new=new[part], repeats=200, far=0.1,
            split=of_all.split.of_images(part), backfill_curve=True,
        )
        for name, part in rows.items()
    }  # fmt: skip
    for sides in ((trained, learnt), (nobody, learnt), (trained, free)):
        found = evaluate_embeddings(old=sides[0], new=sides[1], repeats=200, backfill_curve=True)
        assert found.verdict == "within noise"
        assert found.criteria == alone["unseen"].criteria
        assert found.tested_images.tolist() == rows["unseen"].tolist()
        described, expected = found.as_json(), alone["unseen"].as_json()
        for key in ("tests", "single_images", "flips", "backfill_curve", "templates", "queries"):
            assert described[key] == expected[key]
        shown = {OLD_SELF, CROSS, NEW_SELF}
        assert described["tests_of_seen_classes"] == {
            name: values for name, values in alone["seen"].values.items() if name in shown
        }
        counts = {"basis": "unseen", "seen": 29, "tested": 31, "unknown": None}
        assert described["classes"] == counts
        assert "29 of the 60 test classes were in a model's training set" in found.note
        assert "the verdict is over the 31 others" in found.note


def test_seen_classes_without_queries_do_not_count_and_others_do():
    """A hundred trained classes with queries beside 101 unseen ones of one image each."""
    old, labels = noisy_classes(201, images=10, noise=1.3)
    new, _ = noisy_classes(201, images=10, noise=0.3, seed=1)
    rows = np.r_[np.flatnonzero(labels < 100), [10 * c for c in range(100, 201)]]
    old, new, labels = old[rows], new[rows], labels[rows]
    trained = embeddings_of(new, labels, [f"class {label}" for label in range(100)])
    with pytest.raises(UserError, match=r"^100 of the 100 test classes were in a model's train"):
        evaluate_embeddings(old=old, new=trained, repeats=9)
    mates = embeddings_of(new, labels, [f"class {label}" for label in range(100, 201)])
    found = evaluate_embeddings(old=old, new=mates, repeats=9)
    assert (found.seen.count, found.seen.classes) == (None, 100), "arrays do not say"
    assert found.split.classes == 100
    left_out = "classes without queries that a model was trained on are left out of the gallery"
    assert f"{left_out} (101)" in found.note
    assert left_out not in evaluate_embeddings(labels, old=old, new=new, repeats=9).note


def test_a_verdict_over_seen_classes_is_marked():
    old, labels = noisy_classes(noise=1.3)
    new, _ = noisy_classes(noise=0.3, seed=1)
    trained = embeddings_of(new, labels, [f"class {label}" for label in range(30)])
    with pytest.raises(UserError, match=r"30 of the 30 test classes .*seen_classes=True"):
        evaluate_embeddings(old=old, new=trained, repeats=9)
    found = evaluate_embeddings(old=old, new=trained, repeats=99, seen_classes=True)
    assert (found.verdict, found.seen.basis) == ("compatible", "overridden")
    assert "the verdict is over them, and says nothing about other classes" in found.note


def test_embeddings_say_which_test_classes_were_trained_on():
    vectors, labels = noisy_classes(noise=1.3)
    names = [f"class {label}" for label in range(labels.max() + 1)]
    some = embeddings_of(vectors, labels, [*names[:4], "another"])
    most = embeddings_of(vectors, labels, names[3:20])
    found = evaluate_embeddings(old=some, new=some, repeats=9)
    assert found.as_json()["seen_classes"] == 4
    assert "4 of the 30 test classes were in a model's training set" in found.note
    arrays = evaluate_embeddings(labels, old=vectors, new=vectors, repeats=9)
    assert arrays.as_json()["seen_classes"] is None
    for old, new, free in ((some, most, None), (most, some, None), (some, some, most)):
        with pytest.raises(UserError, match=r"20 of the 30 test classes .*seen_classes=True"):
            evaluate_embeddings(labels, old=old, new=new, free=free, repeats=9)
    allowed = evaluate_embeddings(old=some, new=most, seen_classes=True, repeats=9)
    assert allowed.as_json()["classes"]["basis"] == "overridden"
    assert allowed.as_json()["seen_classes"] == 20
    assert "20 of the 30 test classes were in a model's training set" in allowed.note
    assert "the verdict is over the 10 others" in allowed.note


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_scores(monkeypatch):
    """All parts of an evaluation, with limits that both sizes are far beyond."""
    for module, name, limit in (
        (impostors, "_ALWAYS_KEPT", 10_000),
        (impostors, "_MOST_KEPT", 10_000),
        (impostors, "_HALF", 1 << 12),
        (impostors, "_BINS", 1 << 13),
        (bootstrap, "_WIDEST_WINDOW", 10_000),
        (score_table, "_SCORES_AT_ONCE", 20_000),
        (ranking, "_RANKING_SCORES_AT_ONCE", 20_000),
    ):
        monkeypatch.setattr(module, name, limit)
    peaks, scores = [], []
    for classes in (100, 400):
        old, labels = noisy_classes(classes=classes, images=8, dim=8)
        new, _ = noisy_classes(classes=classes, images=8, dim=8, seed=1)
        tracemalloc.start()
        found = evaluate_embeddings(labels, old=old, new=new, repeats=20, far=0.2)
        found.as_json()
        found.tests[CROSS].pairs.roc()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        scores.append(len(found.split.query) * classes)
    assert scores[1] == 16 * scores[0]
    # One array of all scores would add four bytes a score.
    assert peaks[1] - peaks[0] < 2 * (scores[1] - scores[0])
