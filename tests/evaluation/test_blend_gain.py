import json

import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes
from unibct.errors import UserError
from unibct.evaluation.blending import blended, choose_alpha
from unibct.evaluation.criterion import compare_tests
from unibct.evaluation.search_test import search_test
from unibct.evaluation.upgrade import evaluate_upgrade


@pytest.fixture(scope="module")
def vectors():
    old, labels = noisy_classes(noise=1.5, seed=2)
    new, _ = noisy_classes(noise=1.2, seed=3)
    return old, new, labels


def test_the_gains_are_paired_differences_to_both_other_queries(vectors):
    old, new, labels = vectors
    found = evaluate_upgrade(old, new, labels, repeats=200, alpha=0.4)
    blend = found.blended_queries
    assert (blend.alpha, blend.choice) == (0.4, None)
    by_hand = search_test(blended(old, new, 0.4), old, found.split)
    for criteria, query in ((blend.minus_old_self, old), (blend.minus_cross, new)):
        before = search_test(query, old, found.split)
        expected = compare_tests(before, by_hand, far=found.far, repeats=200)
        assert [c.metric for c in criteria] == [c.metric for c in expected]
        for one, other in zip(criteria, expected, strict=True):
            assert (one.low, one.difference, one.high) == pytest.approx(
                (other.low, other.difference, other.high), abs=1e-3
            )
    assert blend.verdict == "compatible", "two independent errors average out"
    described = json.loads(json.dumps(found.as_json()))["blended_queries"]
    assert (described["alpha"], described["chosen_on"]) == (0.4, None)
    top_1 = next(row for row in described["minus_cross"] if row["metric"] == "top-1")
    tests = found.as_json()["tests"]
    gain = tests["blend→old"]["top-1"] - tests["new→old"]["top-1"]
    assert top_1["difference"] == pytest.approx(gain)
    assert top_1["interval"][0] <= gain <= top_1["interval"][1]


def test_the_ends_are_the_old_and_the_cross_test(vectors):
    old, new, labels = vectors
    for alpha, test in ((0, "old→old"), (1, "new→old")):
        found = evaluate_upgrade(old, new, labels, repeats=5, alpha=alpha)
        assert found.values["blend→old"] == pytest.approx(found.values[test])


def test_a_choice_on_other_classes_is_reported(vectors):
    old, new, labels = vectors
    others = -old, -new, labels
    choice = choose_alpha(*others, chosen_on="elsewhere")
    found = evaluate_upgrade(old, new, labels, repeats=5, alpha=choice).blended_queries
    assert found.alpha == choice.alpha
    assert found.as_json()["chosen_on"] == choice.as_json()
    with pytest.raises(UserError, match=r"alpha lies in \[0, 1\]"):
        evaluate_upgrade(old, new, labels, repeats=5, alpha=2)


def test_a_projection_into_the_old_space_is_what_is_blended(vectors):
    old, new, labels = vectors
    wide = np.hstack([new, new[:, :3]])
    found = evaluate_upgrade(old, wide, labels, projected=new, repeats=5)
    plain = evaluate_upgrade(old, new, labels, repeats=5)
    assert found.values["blend→old"] == plain.values["blend→old"]
