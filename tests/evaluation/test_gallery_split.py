import numpy as np
import pytest

from unibct.evaluation.gallery_split import chosen_gallery, split_gallery


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
    ):
        with pytest.raises(ValueError, match=message):
            chosen_gallery(labels, np.array(query, dtype=int), gallery)
