import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from unibct.errors import UserError
from unibct.evaluation.blending import blended, blended_test, choose_alpha
from unibct.evaluation.criterion import compare_tests
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.upgrade import evaluate_embeddings


def test_a_blend_by_hand():
    # Lengths do not count: (0, 2) becomes (0, 1), and the mean of (0, 1) and (1, 0) is diagonal.
    assert blended(old=[[0.0, 2.0]], new=[[5.0, 0.0]]) == pytest.approx(np.full((1, 2), 0.5**0.5))
    # (0.25·(0, 1) + 0.75·(1, 0)) / |…| with |…| = √(1 + 9) / 4
    quarter = blended(old=[[0.0, 1.0]], new=[[1.0, 0.0]], alpha=0.75)
    assert quarter == pytest.approx(np.array([[3, 1]]) / 10**0.5)


@given(st.integers(0, 1000), st.floats(0, 1))
def test_a_blend_is_the_naive_formula_and_of_the_kind_that_was_given(seed, alpha):
    old, new = np.random.default_rng(seed).normal(size=(2, 5, 7)).astype(np.float32)
    result = blended(old=old, new=new, alpha=alpha)
    for row, (first, second) in enumerate(zip(old.tolist(), new.tolist(), strict=True)):
        lengths = [sum(x * x for x in vector) ** 0.5 for vector in (first, second)]
        mixed = [
            (1 - alpha) * x / lengths[0] + alpha * y / lengths[1]
            for x, y in zip(first, second, strict=True)
        ]
        length = sum(x * x for x in mixed) ** 0.5
        assert result[row] == pytest.approx([x / length for x in mixed], abs=1e-5)
    assert result.dtype == np.float32
    tensor = blended(old=torch.tensor(old), new=torch.tensor(new), alpha=alpha)
    assert torch.is_tensor(tensor)
    assert np.array_equal(tensor.numpy(), result)


def test_the_ends_are_the_two_queries():
    old, new = np.random.default_rng(0).normal(size=(2, 4, 3))
    for alpha, query in ((0, old), (1, new)):
        unit = query / np.linalg.norm(query, axis=1, keepdims=True)
        assert np.allclose(blended(old=old, new=new, alpha=alpha), unit)


@pytest.mark.parametrize(
    ("new", "alpha", "message"),
    [
        (np.ones((2, 3)), 1.5, r"alpha lies in \[0, 1\], not 1.5"),
        (np.ones((2, 4)), 0.5, "old has dimension 3 but new has"),
        (np.ones((1, 3)), 0.5, "2 old queries and 1 new queries do not match"),
    ],
)
def test_bad_inputs_are_refused(new, alpha, message):
    with pytest.raises(UserError, match=message):
        blended(old=np.ones((2, 3)), new=new, alpha=alpha)
    with pytest.raises(UserError, match="alphas is empty"):
        choose_alpha([0, 0, 1, 1], old=np.eye(4), new=np.eye(4), alphas=[])


def noisy_pair(seed=0):
    old, labels = noisy_classes(classes=9, images=8, noise=1.2, seed=seed)
    new, _ = noisy_classes(classes=9, images=8, noise=1.1, seed=seed + 100)
    return old, new, labels


@given(st.integers(0, 50), st.floats(0, 1), st.sampled_from(["templates", "images"]))
def test_a_blended_test_is_the_search_of_blended_queries(seed, alpha, mode):
    old, new, labels = noisy_pair(seed)
    split = split_gallery(labels)
    old_self, cross = (search_test(query, old, split, mode=mode) for query in (old, new))
    found = blended_test(old_self, cross, alpha)
    expected = search_test(blended(old=old, new=new, alpha=alpha), old, split, mode=mode)
    assert found.genuine == pytest.approx(expected.genuine, abs=1e-6)
    assert all_scores(found.impostor) == pytest.approx(all_scores(expected.impostor), abs=1e-6)
    assert (found.templates, found.classes) == (expected.templates, expected.classes)
    assert found.images is not None


@given(st.integers(0, 30))
def test_the_chosen_alpha_has_the_best_mean_reciprocal_rank_of_a_naive_search(seed):
    old, new, labels = noisy_pair(seed)
    split = split_gallery(labels, seed=3)
    unit = {name: v / np.linalg.norm(v, axis=1, keepdims=True) for name, v in
            (("old", old), ("new", new))}  # fmt: skip
    templates = [
        unit["old"][[i for i in split.gallery if labels[i] == c]].mean(axis=0) for c in range(9)
    ]
    templates = [template / np.linalg.norm(template) for template in templates]
    means = {}
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0):
        ranks = []
        for image in split.query:
            query = (1 - alpha) * unit["old"][image] + alpha * unit["new"][image]
            scores = [float(query @ template) for template in templates]
            mate = scores[labels[image]]
            others = [s for c, s in enumerate(scores) if c != labels[image]]
            ranks.append(1 + sum(other >= mate for other in others))
        means[alpha] = sum(1 / rank for rank in ranks) / len(ranks)
    choice = choose_alpha(labels, old=old, new=new, alphas=tuple(means), seed=3)
    assert choice.mean_reciprocal_ranks == pytest.approx(means)
    assert means[choice.alpha] == pytest.approx(max(means.values()))


def test_of_equals_the_midpoint_is_chosen_and_a_foreign_model_gets_no_share():
    old, _, labels = noisy_pair()
    assert choose_alpha(labels, old=old, new=old).alpha == 0.5
    foreign = np.random.default_rng(1).normal(size=old.shape)
    chosen = choose_alpha(labels, old=old, new=foreign, chosen_on="these")
    assert chosen.alpha <= 0.2
    assert chosen.as_json()["data"] == "these"
    assert set(chosen.as_json()["mean_reciprocal_ranks"]) >= {"0", "0.1", "0.5", "1"}


@pytest.fixture(scope="module")
def vectors():
    old, labels = noisy_classes(noise=1.5, seed=2)
    new, _ = noisy_classes(noise=1.2, seed=3)
    return old, new, labels


def test_the_gains_are_paired_differences_to_both_other_queries(vectors):
    old, new, labels = vectors
    found = evaluate_embeddings(labels, old=old, new=new, repeats=200, alpha=0.4)
    blend = found.blended_queries
    assert (blend.alpha, blend.choice) == (0.4, None)
    by_hand = search_test(blended(old=old, new=new, alpha=0.4), old, found.split)
    for criteria, query in ((blend.minus_old_self, old), (blend.minus_cross, new)):
        before = search_test(query, old, found.split)
        expected = compare_tests(before, by_hand, far=found.far, repeats=200)
        assert [c.metric for c in criteria] == [c.metric for c in expected]
        for one, other in zip(criteria, expected, strict=True):
            want = (other.low, other.difference, other.high)
            assert (one.low, one.difference, one.high) == pytest.approx(want, abs=1e-3)
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
        found = evaluate_embeddings(labels, old=old, new=new, repeats=5, alpha=alpha)
        assert found.values["blend→old"] == pytest.approx(found.values[test])


def test_a_choice_on_other_classes_is_reported(vectors):
    old, new, labels = vectors
    choice = choose_alpha(labels, old=-old, new=-new, chosen_on="elsewhere")
    found = evaluate_embeddings(labels, old=old, new=new, repeats=5, alpha=choice).blended_queries
    assert found.alpha == choice.alpha
    assert found.as_json()["chosen_on"] == choice.as_json()
    with pytest.raises(UserError, match=r"alpha lies in \[0, 1\]"):
        evaluate_embeddings(labels, old=old, new=new, repeats=5, alpha=2)


def test_a_projection_into_the_old_space_is_what_is_blended(vectors):
    old, new, labels = vectors
    wide = np.hstack([new, new[:, :3]])
    found = evaluate_embeddings(labels, old=old, new=wide, projected=new, repeats=5)
    plain = evaluate_embeddings(labels, old=old, new=new, repeats=5)
    assert found.values["blend→old"] == plain.values["blend→old"]
