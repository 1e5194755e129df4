import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.backfill_curve import CUTS, backfill_curve, row_orders
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.metrics.table import measured_metrics
from unibct.evaluation.search_test import search_test


@pytest.fixture(scope="module")
def models():
    old, labels = noisy_classes(noise=1.3, images=16)
    new, _ = noisy_classes(noise=0.5, images=16, seed=1)
    return old, new, split_gallery(labels)


@pytest.mark.parametrize("name", ["random", "farthest"])
def test_the_ends_are_the_cross_and_the_self_test(models, name):
    old, new, split = models
    order = row_orders(old, split)[name]
    assert np.array_equal(np.sort(order), np.arange(len(split.gallery)))
    old_self = measured_metrics(search_test(old, old, split), [0.1])
    curve = backfill_curve(old, new, split, order, far=0.1, old_self=old_self)
    assert len(curve.shares) == CUTS == 22
    assert curve.shares[[0, -1]].tolist() == [0, 1]
    for place, gallery in ((0, old), (-1, new)):
        want = measured_metrics(search_test(new, gallery, split), [0.1])
        assert {metric: values[place] for metric, values in curve.values.items()} == want
    # A cut between the ends, by hand.
    mixed = old.copy()
    remade = split.gallery[order[: 7 * len(order) // 21]]
    mixed[remade] = new[remade]
    want = measured_metrics(search_test(new, mixed, split), [0.1])
    assert curve.values["top-1"][7] == want["top-1"]
    assert curve.mean("top-1") == pytest.approx(np.mean(curve.values["top-1"]))
    assert curve.dip("mAP") == min(curve.values["mAP"]) - old_self["mAP"]
    described = curve.as_json()
    assert described["dip"] == described["dips"]["top-1"]
    assert described["mean"] == curve.mean("top-1")


def test_the_farthest_row_is_embedded_again_first(models):
    old, _, split = models
    rows = old[split.gallery] / np.linalg.norm(old[split.gallery], axis=1, keepdims=True)
    order = row_orders(old, split)["farthest"]
    distances = []
    for row, label in zip(rows, split.gallery_labels, strict=True):
        mean = rows[split.gallery_labels == label].mean(axis=0)
        distances.append(1 - row @ mean / np.linalg.norm(mean))
    assert np.allclose(np.array(distances)[order], np.sort(distances)[::-1], atol=1e-6)
