import numpy as np
import pytest

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.bootstrap import class_draws
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.metrics.verification import strict_threshold
from unibct.evaluation.old_threshold import at_old_thresholds
from unibct.evaluation.score_map import fit_score_map, fit_score_maps
from unibct.evaluation.search_test import search_test


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


def test_a_class_is_never_mapped_by_a_map_that_saw_it(measured, monkeypatch):
    old_self, cross, draws, _ = measured
    seen = []

    def watched(cross_impostor, old_impostor):
        maps = fit_score_maps(cross_impostor, old_impostor)
        seen.extend([*cross_impostor.sizes, maps])
        return maps

    monkeypatch.setattr("unibct.evaluation.old_threshold.fit_score_maps", watched)
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
        assert np.array_equal(seen[-1][fold].cross, fitted.cross)
        assert np.array_equal(seen[-1][fold].old, fitted.old)
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
        assert row.as_json()["scaled"]["far_interval"] == list(row.scaled.far_interval)
        assert row.scaled.tar > max(row.cross.tar, row.old.tar)
        assert row.scaled.far_interval[0] <= 1.2 * row.far
        same = at_old_thresholds(old_self, cross, draws, score_scale=1.0)[0]
        assert same.scaled == same.cross


def test_nor_by_one_that_saw_its_rows_in_a_gallery_of_images(monkeypatch):
    old, labels = noisy_classes(noise=1.3)
    split, sizes = split_gallery(labels), []

    def watched(cross_impostor, old_impostor):
        sizes.extend(cross_impostor.sizes)
        return fit_score_maps(cross_impostor, old_impostor)

    monkeypatch.setattr("unibct.evaluation.old_threshold.fit_score_maps", watched)
    test = search_test(old, old, split, mode="images")
    at_old_thresholds(test, test, class_draws(test, repeats=9))
    fold_of = np.random.default_rng([0, 4]).permutation(split.classes) % 5
    queries, rows = split.query_labels[:, None], split.gallery_labels
    for fold, size in enumerate(sizes):
        others = (fold_of[queries] != fold) & (fold_of[rows] != fold) & (queries != rows)
        assert size == others.sum()
