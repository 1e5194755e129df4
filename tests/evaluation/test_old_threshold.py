import numpy as np
import pytest

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.bootstrap import ClassDraws, class_draws
from unibct.evaluation.old_threshold import (
    ClassMaps,
    acceptances,
    at_old_thresholds,
    flip_rates,
    flips_of,
    same_map,
    sampled_flip_rates,
)
from unibct.evaluation.score_map import SCALED, ScoreMap, fit_score_map, fit_score_maps
from unibct.evaluation.search_test import scored_test, search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.verification import strict_threshold


@pytest.fixture(scope="module")
def test():
    vectors, labels = noisy_classes(classes=12, images=8, noise=1.0)
    return search_test(vectors, vectors, split_gallery(labels))


def test_pairs_are_counted_class_by_class(test):
    maps = {"plain": None, "doubled": same_map(ScoreMap(SCALED, 2.0), 12)}
    found = acceptances(test.pairs, [0.2, 0.5], 12, maps)
    scores, labels = test.scores[:], test.query_classes
    is_mate = labels[:, None] == np.arange(12)
    for name, factor in (("plain", 1), ("doubled", 2)):
        for threshold, entry in zip((0.2, 0.5), found[name], strict=True):
            passed = factor * scores.astype(np.float64) > threshold
            assert entry.tar == np.mean(passed[is_mate])
            assert entry.far == np.mean(passed[~is_mate])
            for label in range(12):
                rows = labels == label
                assert entry.genuine[label] == (passed & is_mate)[rows].sum()
                assert entry.impostors[label] == (passed & ~is_mate)[rows].sum()
                assert entry.all_genuine[label] == rows.sum()
                assert entry.all_impostors[label] == 11 * rows.sum()


def test_drawn_classes_count_as_often_as_they_are_drawn(test):
    entry = acceptances(test.pairs, [0.3], 12, {"plain": None})["plain"][0]
    once, twice = np.ones((1, 12), dtype=np.int64), np.zeros((1, 12), dtype=np.int64)
    twice[0, 3] = 2
    assert entry.sampled_tar(ClassDraws(once)) == pytest.approx([entry.tar])
    assert entry.sampled_far(ClassDraws(once)) == pytest.approx([entry.far])
    tar = entry.genuine[3] / entry.all_genuine[3]
    far = entry.impostors[3] / entry.all_impostors[3]
    assert entry.sampled_tar(ClassDraws(twice)) == pytest.approx([tar])
    assert entry.sampled_far(ClassDraws(twice)) == pytest.approx([far])


def test_each_class_has_its_map():
    maps = ClassMaps([ScoreMap(SCALED, 2.0), ScoreMap(SCALED, 0.5)], np.array([1, 0, 1]))
    scores, classes = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1, 2, 1])
    assert maps.mapped(scores, classes).tolist() == [0.05, 0.4, 0.15, 0.8]
    assert maps.limits(0.5, np.float64).tolist() == [1, 0.25, 1]
    assert same_map(maps.maps[0], 3).limits(0.5, np.float64).tolist() == [0.25, 0.25, 0.25]


@pytest.fixture(scope="module")
def measured():
    """A better new model whose queries score lower in the old gallery."""
    old, labels = noisy_classes(classes=120, images=12, noise=1.0, dim=24)
    new, _ = noisy_classes(classes=120, images=12, noise=0.7, dim=24, seed=1)
    # Directions that the old gallery does not use make every score smaller, and change no ranking.
    unused = 1.5 * np.random.default_rng(5).normal(size=new.shape).astype(np.float32)
    old, new = np.hstack([old, 0 * unused]), np.hstack([new, unused])
    split = split_gallery(labels)
    old_self, cross = search_test(old, old, split), search_test(new, old, split)
    draws = class_draws(cross, repeats=200)
    return old_self, cross, draws, at_old_thresholds(old_self, cross, draws)


def test_the_old_threshold_is_that_of_the_old_self_test(measured):
    old_self, cross, _, rows = measured
    assert [row.far for row in rows] == [1e-2, 1e-3, 1e-4]
    for row in rows:
        assert row.threshold == strict_threshold(old_self.impostor, row.far)
        assert row.new_threshold == strict_threshold(cross.impostor, row.far)
        assert row.old.far <= row.far
        assert row.old.tar == old_self.tar(row.far)
        assert row.own_tar == cross.tar(row.far)
        assert row.cross.tar == np.mean(cross.genuine > row.threshold)
        assert row.cross.far == np.mean(all_scores(cross.impostor) > row.threshold)
        assert row.interval[0] <= row.threshold <= row.interval[1]


def test_the_map_brings_the_rates_back(measured):
    """Without it matches are lost; with it FAR is the target's and TAR the cross test's own."""
    row = measured[-1][0]
    assert row.needs_new_threshold
    assert row.cross.tar < 0.9 * row.own_tar
    assert row.mapped.far_interval[0] <= row.far <= row.mapped.far_interval[1]
    assert row.mapped.tar >= 0.95 * row.own_tar


@pytest.fixture
def seen(monkeypatch):
    """How many impostor scores fitted each map, and the maps."""
    fits = []

    def watched(cross_impostor, old_impostor):
        maps = fit_score_maps(cross_impostor, old_impostor)
        fits.extend([*cross_impostor.sizes, maps])
        return maps

    monkeypatch.setattr("unibct.evaluation.old_threshold.fit_score_maps", watched)
    return fits


def test_a_class_is_never_mapped_by_a_map_that_saw_it(measured, seen):
    old_self, cross, draws, _ = measured
    rows = at_old_thresholds(old_self, cross, draws)
    # Four fifths of the queries against four fifths of the templates, without the mates.
    queries = 96 * 9
    assert seen[:5] == [queries * 95] * 5
    # The same with arrays: each fold's queries, mapped by what the other folds gave.
    fold_of = np.random.default_rng([0, 4]).permutation(120) % 5
    cross_scores, old_scores = (test.scores[:] for test in (cross, old_self))
    labels = cross.query_classes
    impostor = labels[:, None] != np.arange(120)
    mapped = np.empty(cross_scores.shape)
    for fold in range(5):
        rest = impostor & (fold_of != fold)[labels][:, None] & (fold_of != fold)
        fitted = fit_score_map(cross_scores[rest], old_scores[rest])
        assert np.array_equal(seen[-1][fold].knots, fitted.knots)
        mapped[fold_of[labels] == fold] = fitted(cross_scores[fold_of[labels] == fold])
    for row in rows[:2]:
        assert row.mapped.far == np.mean(mapped[impostor] > row.threshold)
        assert row.mapped.tar == np.mean(mapped[~impostor] > row.threshold)


def test_a_given_map_is_used_as_it_is(measured):
    old_self, cross, draws, _ = measured
    given = fit_score_map(cross.impostor, old_self.impostor)
    row = at_old_thresholds(old_self, cross, draws, score_map=given)[0]
    assert row.mapped.tar == np.mean(given(cross.genuine) > row.threshold)
    assert row.as_json()["mapped"]["far"] == row.mapped.far


def test_scaled_scores_are_the_scores_times_the_scale(measured):
    """New queries spread less in the old gallery; the ratio of spreads brings the rates back."""
    old_self, cross, draws, unscaled = measured
    assert {row.scaled for row in unscaled} == {None}
    assert unscaled[0].as_json()["scaled"] is None
    impostors = [all_scores(test.impostor).astype(np.float64) for test in (old_self, cross)]
    scale = impostors[0].std() / impostors[1].std()
    for row in at_old_thresholds(old_self, cross, draws, score_scale=scale):
        assert row.scaled.tar == np.mean(scale * cross.genuine.astype(np.float64) > row.threshold)
        assert row.scaled.far == np.mean(scale * impostors[1] > row.threshold)
        assert row.as_json()["scaled"]["far_interval"] == row.scaled.far_interval
        assert row.scaled.tar > max(row.cross.tar, row.old.tar)
        assert row.scaled.far_interval[0] <= 1.2 * row.far
        same = at_old_thresholds(old_self, cross, draws, score_scale=1.0)[0]
        assert same.scaled == same.cross


def test_nor_by_one_that_saw_its_rows_in_a_gallery_of_images(seen):
    old, labels = noisy_classes(noise=1.3)
    split = split_gallery(labels)
    test = search_test(old, old, split, mode="images")
    at_old_thresholds(test, test, class_draws(test, repeats=9))
    fold_of = np.random.default_rng([0, 4]).permutation(split.classes) % 5
    queries, rows = split.query_labels[:, None], split.gallery_labels
    for fold, size in enumerate(seen[:5]):
        others = (fold_of[queries] != fold) & (fold_of[rows] != fold) & (queries != rows)
        assert size == others.sum()


def two_tests_of(right_before, right_now, labels):
    """Two tests of the same queries among three classes, right where they should be."""
    labels = np.asarray(labels)
    scores = np.zeros((2, len(labels), 3))
    for test, right in zip(scores, (right_before, right_now), strict=True):
        winner = np.where(right, labels, (labels + 1) % 3)
        test[np.arange(len(labels)), winner] = 1
    return [scored_test(test, labels) for test in scores]


BEFORE = [1, 1, 1, 0, 0, 1, 0, 1]
NOW = [1, 0, 1, 1, 0, 0, 1, 1]
LABELS = [0, 0, 1, 1, 2, 2, 0, 1]


def test_rates_by_hand():
    """Two of eight flip to wrong, two to right; 5/8 were right, 3/8 are wrong."""
    rates = flip_rates(*two_tests_of(np.array(BEFORE) > 0, np.array(NOW) > 0, LABELS))
    assert rates["nfr"] == pytest.approx(2 / 8)
    assert rates["pfr"] == pytest.approx(2 / 8)
    assert rates["relative_nfr"] == pytest.approx((2 / 8) / (5 / 8 * 3 / 8))


def test_the_difference_of_the_rates_is_the_change_of_top_1():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    old, now = two_tests_of(rng.random(200) < 0.6, rng.random(200) < 0.7, labels)
    rates = flip_rates(old, now)
    assert rates["pfr"] - rates["nfr"] == pytest.approx(now.top(1) - old.top(1))
    # Independent errors: the relative rate is near 1.
    assert 0.7 < rates["relative_nfr"] < 1.3


def test_samples_equal_a_naive_resample():
    old, now = two_tests_of(np.array(BEFORE) > 0, np.array(NOW) > 0, LABELS)
    draws = np.array([[1, 1, 1], [2, 0, 1], [0, 3, 0]])
    samples = sampled_flip_rates(old, now, ClassDraws(draws))
    for repeat, counts in enumerate(draws):
        rows = np.repeat(np.arange(8), counts[LABELS])
        was, is_right = np.array(BEFORE)[rows] > 0, np.array(NOW)[rows] > 0
        nfr = np.mean(was & ~is_right)
        expected = was.mean() * (~is_right).mean()
        assert samples["nfr"][repeat] == pytest.approx(nfr)
        assert samples["pfr"][repeat] == pytest.approx(np.mean(~was & is_right))
        assert samples["relative_nfr"][repeat] == pytest.approx(nfr / expected if expected else 0)
    found = flips_of(old, now, ClassDraws(draws))
    assert found.nfr.low <= found.nfr.mean <= found.nfr.high
    assert found.as_json()["relative_nfr"] == found.relative_nfr.mean


def test_nothing_flips_when_nothing_changes():
    old, now = two_tests_of(np.ones(8, bool), np.ones(8, bool), LABELS)
    assert flip_rates(old, now) == {"nfr": 0, "pfr": 0, "relative_nfr": 0}
