import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.acceptance import acceptances
from unibct.evaluation.bootstrap import ClassDraws
from unibct.evaluation.class_maps import same_map
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.scale_map import ScaleMap
from unibct.evaluation.search_test import search_test


@pytest.fixture(scope="module")
def test():
    vectors, labels = noisy_classes(classes=12, images=8, noise=1.0)
    return search_test(vectors, vectors, split_gallery(labels))


def test_pairs_are_counted_class_by_class(test):
    maps = {"plain": None, "doubled": same_map(ScaleMap(2.0), 12)}
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
    assert entry.sampled_tar(ClassDraws(twice)) == pytest.approx(
        [entry.genuine[3] / entry.all_genuine[3]]
    )
    assert entry.sampled_far(ClassDraws(twice)) == pytest.approx(
        [entry.impostors[3] / entry.all_impostors[3]]
    )
