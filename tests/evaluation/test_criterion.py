import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.criterion import Criterion, compare_tests, estimate
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.search_test import search_test


def test_verdicts():
    def criterion(low, high):
        return Criterion("top-1", 0.5, 0.5, low, high).verdict

    assert criterion(0.01, 0.03) == "compatible"
    assert criterion(-0.03, -0.01) == "not compatible"
    assert criterion(-0.01, 0.03) == "within noise"
    assert criterion(0.0, 0.0) == "within noise"
    few = Criterion("top-1", 0.5, 0.9, 0.3, 0.5, few_classes=True)
    assert few.verdict == "within noise", "an interval over a few classes is too narrow"


@pytest.mark.slow
def test_interval_covers_the_truth_about_as_often_as_it_says():
    """Two query models of equal quality: a 95 % interval of the difference should hold zero."""
    covered = 0
    for seed in range(60):
        old, labels = noisy_classes(classes=25, images=8, noise=1.2, seed=seed)
        split = split_gallery(labels, seed=seed)
        first, _ = noisy_classes(classes=25, images=8, noise=1.2, seed=1000 + seed)
        second, _ = noisy_classes(classes=25, images=8, noise=1.2, seed=2000 + seed)
        tests = [search_test(query, old, split) for query in (first, second)]
        criteria = compare_tests(*tests, far=0.05, seed=seed, repeats=200)
        covered += criteria[1].low <= 0 <= criteria[1].high
    assert 50 <= covered <= 60


def test_both_tests_are_sampled_with_the_same_draws():
    """A test against itself differs in no draw, so its interval is zero."""
    old, labels = noisy_classes(classes=12, images=8, noise=1.2)
    test = search_test(old, old, split_gallery(labels))
    for criterion in compare_tests(test, test, far=0.1, repeats=40):
        assert (criterion.low, criterion.high) == (0, 0)


@pytest.mark.slow
def test_the_interval_of_a_tar_is_as_wide_as_the_spread_over_draws_of_classes():
    """Look-alike classes set the threshold: the bootstrap must neither hide nor inflate that."""
    rng = np.random.default_rng(0)
    differences, widths = [], []
    for seed in range(60):
        centres = rng.normal(size=(45, 8))
        centres[:15] = centres[15:30] + 0.15 * rng.normal(size=(15, 8))
        labels = np.repeat(np.arange(45), 10)
        shared, own = rng.normal(size=(2, 450, 8))
        old = (centres[labels] + 0.5 * shared).astype(np.float32)
        new = (centres[labels] + 0.35 * shared + 0.1 * own).astype(np.float32)
        split = split_gallery(labels, seed=seed)
        tests = [search_test(query, old, split) for query in (old, new)]
        tar = compare_tests(*tests, far=0.01, seed=seed, repeats=150)[0]
        differences.append(tar.difference)
        widths.append(tar.high - tar.low)
    assert 0.9 < np.mean(widths) / (2 * 1.96 * np.std(differences)) < 1.4


@pytest.mark.slow
def test_the_interval_over_classes_and_seeds_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    classes, repeats, trials = 150, 300, 250
    for seeds, between in ((3, 0.0), (3, 1.0), (3, 3.0), (5, 3.0)):
        held = 0
        for _ in range(trials):
            effects = rng.normal(size=(1, classes)) + rng.normal(size=(seeds, classes))
            effects = effects + rng.normal(0, between / np.sqrt(classes), (seeds, 1))
            draws = rng.multinomial(classes, np.full(classes, 1 / classes), size=repeats) / classes
            found = estimate(effects.mean(axis=1), effects @ draws.T, seed=int(rng.integers(1e9)))
            held += found.low <= 0 <= found.high
        assert 0.88 < held / trials <= 0.995


def test_one_seed_has_the_interval_over_classes_alone():
    samples = np.random.default_rng(0).normal(size=(1, 1000))
    found = estimate(np.array([0.1]), samples)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))
    assert found.mean == 0.1
    assert found.verdict == "within noise"
