import numpy as np
import pytest

from unibct.evaluation.gallery_split import chosen_gallery, split_for, split_gallery


def test_protocol_takes_a_quarter_and_at_least_one():
    labels = np.repeat(np.arange(4), [1, 3, 8, 21])
    split = split_gallery(labels, seed=3)
    assert np.bincount(labels[split.gallery]).tolist() == [1, 1, 2, 5]
    assert np.array_equal(np.union1d(split.gallery, split.query), np.arange(len(labels)))
    assert not set(split.gallery) & set(split.query)
    assert np.array_equal(split_gallery(labels, seed=3).query, split.query)
    assert not np.array_equal(split_gallery(labels, seed=4).query, split.query)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 0], "two classes"),
        ([0, 1, 2], "fewer than two classes"),
        ([0, 0, 1], "fewer than two classes"),
        ([0, 0, 2, 2], "gap"),
    ],
)
def test_bad_labels_are_named(labels, message):
    with pytest.raises(ValueError, match=message):
        split_gallery(labels)


def test_chosen_queries_and_gallery():
    labels = [0, 0, 0, 1, 1, 1]
    split = chosen_gallery(labels, query=[5, 1], gallery=[0, 3, 4])
    assert split.query.tolist() == [1, 5]
    assert split.gallery.tolist() == [0, 3, 4]
    for query, gallery, message in (
        ([1], [1, 3], "image 1 is a query and in the gallery"),
        ([1], [0], "class 1 has no image in the gallery"),
        ([], [0, 3], "there is no query"),
        ([1, 2], [0, 3], "all queries are of one class"),
        ([1, -1], [0, 3, 5], "query has the index -1; the 6 images count from 0"),
        ([1, 4], [0, 3, 6], "gallery has the index 6; the 6 images count from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            chosen_gallery(labels, np.array(query, dtype=int), gallery)


def test_a_split_is_for_its_own_labels():
    labels = np.repeat(np.arange(3), 4)
    split = split_gallery(labels, seed=1)
    assert split_for(labels.tolist(), split) is split
    assert np.array_equal(split_for(labels, None, seed=1).query, split.query)
    with pytest.raises(ValueError, match="the split was made for other labels than these"):
        split_for(labels[::-1], split)


def test_classes_without_queries_are_not_compared_with_each_other():
    assert split_gallery(np.repeat(np.arange(50), 4)).compared_classes == 50
    long_tail = split_gallery(np.r_[np.repeat([0, 1, 2], 4), np.arange(3, 40)])
    assert (long_tail.classes, long_tail.query_classes) == (40, 3)
    pairs = {frozenset((q, t)) for q in range(3) for t in range(40) if q != t}
    as_many = long_tail.compared_classes
    assert as_many * (as_many - 1) / 2 <= len(pairs) < as_many * (as_many + 1) / 2
