import numpy as np
import pytest

from unibct.evaluation.gallery_split import split_gallery


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
