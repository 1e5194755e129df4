import numpy as np
import pytest
from scipy import stats

from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.criterion import Estimate, compare_tests, estimate, joint_verdict
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import split_gallery


def test_verdicts():
    def verdict(low, high, ceiling=None, classes=10):
        return Estimate(0, low, high, high if ceiling is None else ceiling, classes=classes).verdict

    assert verdict(0.01, 0.03) == "compatible"
    assert verdict(-0.03, -0.01) == "not compatible"
    assert verdict(-0.03, -0.01, ceiling=0.001) == "within noise", "one of three metrics by chance"
    assert verdict(-0.01, 0.03) == "within noise"
    assert verdict(0.0, 0.0) == "within noise"
    assert verdict(0.3, 0.5, classes=9) == "within noise", "too few classes for a verdict"


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


def drawn_samples(effects, rng, repeats=4000):
    """Return the bootstrap of (seeds, classes) effects: (seeds, repeats) means."""
    classes = effects.shape[1]
    draws = rng.multinomial(classes, np.full(classes, 1 / classes), size=repeats) / classes
    return effects @ draws.T


@pytest.mark.parametrize("classes", [5, 12, 200])
def test_one_seed_has_the_t_interval_over_classes(classes):
    """The bootstrap of a mean, stretched, is the interval of the textbook."""
    rng = np.random.default_rng(classes)
    effects = stats.norm.ppf((np.arange(classes) + 0.5) / classes) + 0.3
    samples = drawn_samples(effects[None], rng, 40000)
    found = estimate(effects.mean(keepdims=True), samples, classes=classes)
    textbook = stats.ttest_1samp(effects, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(textbook), abs=0.06 * np.ptp(textbook))
    ceiling = effects.mean() + stats.t.ppf(1 - 0.025 / 3, classes - 1) * stats.sem(effects)
    assert found.ceiling == pytest.approx(ceiling, abs=0.06 * np.ptp(textbook))


@pytest.mark.parametrize("seeds", [3, 5])
def test_without_a_spread_over_classes_the_interval_is_students_over_seeds(seeds):
    values = np.random.default_rng(seeds).normal(0.1, 0.02, seeds)
    found = estimate(values, np.repeat(values[:, None], 50, axis=1), classes=100)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-6)
    expected = values.mean() + stats.t.ppf(1 - 0.025 / 3, seeds - 1) * stats.sem(values)
    assert found.ceiling == pytest.approx(expected, rel=1e-6)


def test_both_parts_are_added_as_squares():
    rng = np.random.default_rng(4)
    effects = rng.normal(0.4, 1, (1, 60)) + rng.normal(0, 0.1, (4, 1))
    values, samples = effects.mean(axis=1), drawn_samples(effects, rng)
    over_classes = estimate(values[:1], samples[:1], classes=60)
    over_seeds = stats.t.ppf(0.975, 3) * stats.sem(values)
    found = estimate(values, samples, classes=60)
    for side, alone in (
        (found.mean - found.low, over_classes.mean - over_classes.low),
        (found.high - found.mean, over_classes.high - over_classes.mean),
    ):
        assert side == pytest.approx(np.hypot(alone, over_seeds))


def test_two_seeds_claim_nothing_about_others():
    """However far apart they are, the interval is that of their mean over classes."""
    rng = np.random.default_rng(5)
    effects = rng.normal(0.4, 1, (1, 60)) + np.array([[0.0], [9.0]])
    values, samples = effects.mean(axis=1), drawn_samples(effects, rng)
    pair = estimate(values, samples, classes=60)
    one = estimate(values.mean(keepdims=True), samples.mean(axis=0)[None], classes=60)
    assert (pair.low, pair.high, pair.ceiling) == (one.low, one.high, one.ceiling)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "seeds", "between"),
    [(10, 1, 0.0), (12, 1, 0.0), (60, 3, 1.0), (60, 3, 3.0), (150, 5, 0.0), (150, 5, 3.0)],
)
def test_equally_good_models_are_hardly_ever_told_apart(classes, seeds, between):
    """Three correlated metrics: each verdict is false in at most about 2.5 % of the trials."""
    rng = np.random.default_rng(classes + seeds)
    trials, false = 800, {"compatible": 0, "not compatible": 0}
    mixed = np.linalg.cholesky(np.full((3, 3), 0.5) + 0.5 * np.eye(3))
    for _ in range(trials):
        shared, own = rng.normal(size=(1, classes, 3)), rng.normal(size=(seeds, classes, 3))
        luck = rng.normal(0, between / np.sqrt(classes), (seeds, 1, 3))
        effects = (shared + 0.5 * own + luck) @ mixed.T
        verdicts = [
            estimate(one.mean(axis=1), drawn_samples(one, rng, 400), classes=classes).verdict
            for one in np.moveaxis(effects, 2, 0)
        ]
        verdict = joint_verdict(verdicts)
        if verdict in false:
            false[verdict] += 1
    assert false["compatible"] <= 0.03 * trials
    assert false["not compatible"] <= 0.04 * trials
