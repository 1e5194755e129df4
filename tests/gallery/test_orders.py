from typing import get_args

import numpy as np
import pytest

from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.orders import ORDERS, count_found, found_counts, ordered_rows
from unibct.gallery.page.answers import BackfillBody


def test_the_page_takes_every_order():
    assert get_args(BackfillBody.model_fields["order"].annotation) == tuple(ORDERS)


def kinds(gallery):
    return list(gallery.folder.state.kinds)


def test_random_orders_depend_on_the_seed_only(toy_gallery):
    first = ordered_rows(toy_gallery.folder, kinds(toy_gallery), "random", 0)
    assert sorted(first) == sorted(toy_images().ids)
    assert first == ordered_rows(toy_gallery.folder, kinds(toy_gallery), "random", 0)
    assert first != ordered_rows(toy_gallery.folder, kinds(toy_gallery), "random", 1)


def test_rows_farthest_from_the_mean_of_their_label_come_first(toy_gallery):
    folder = toy_gallery.folder
    rows = next(folder.engine.scan(kinds(toy_gallery)[0]))
    labels = np.array(rows.labels)
    closeness = {}
    for row_id, label, vector in zip(rows.ids, labels, rows.vectors, strict=True):
        mean = rows.vectors[labels == label].mean(axis=0)
        closeness[row_id] = float(vector @ mean / np.linalg.norm(mean))
    order = ordered_rows(folder, kinds(toy_gallery), "farthest", 0)
    values = [closeness[row_id] for row_id in order]
    np.testing.assert_allclose(values, sorted(values), atol=1e-6)


def test_rows_that_were_asked_for_come_first(toy_gallery):
    count_found(toy_gallery.folder.path, ["c3/3", "c1/1", "c3/3"])
    order = ordered_rows(toy_gallery.folder, kinds(toy_gallery), "asked", 0)
    assert order[:2] == ["c3/3", "c1/1"]


def test_an_unknown_order_lists_the_names(toy_gallery):
    with pytest.raises(UserError, match="random, farthest, asked"):
        ordered_rows(toy_gallery.folder, [], "sideways", 0)


def test_counts_add_up(tmp_path):
    assert found_counts(tmp_path) == {}
    count_found(tmp_path, [])
    assert found_counts(tmp_path) == {}
    count_found(tmp_path, ["a", "b", "a"])
    count_found(tmp_path, ["b", "c"])
    assert found_counts(tmp_path) == {"a": 2, "b": 2, "c": 1}
