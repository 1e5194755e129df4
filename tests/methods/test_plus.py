import itertools

import pytest
import torch

from tests.methods.cases import SETTINGS, batch, knowledge, refreshed_loss, small_arcface
from unibct.losses.contrast import contrast
from unibct.methods.plus import UnibctPlus
from unibct.prototypes.class_prototypes import class_prototypes


def test_unibct_plus_is_its_formula():
    loss, step = refreshed_loss("unibct-plus")
    old_rows = knowledge().embeddings[step.rows]
    shared = small_arcface(old_rows, step.class_weights, step.labels)
    own = contrast(step.embeddings, old_rows, step.labels, tau=1 / 16)
    assert torch.allclose(loss, (shared + own) / 2)


@pytest.mark.parametrize(
    ("shared", "own", "prototype"),
    [parts for parts in itertools.product([True, False], repeat=3) if any(parts)],
)
def test_unibct_plus_is_the_mean_of_its_parts(shared, own, prototype):
    old, step = knowledge(), batch()
    switches = {"shared": shared, "own": own, "prototype": prototype}
    ours = UnibctPlus(old, SETTINGS, **switches, weight=0.5).loss(step)
    old_rows = old.embeddings[step.rows]
    want = 0.0
    if shared:
        want += small_arcface(old_rows, step.class_weights, step.labels)
    if own:
        want += contrast(step.embeddings, old_rows, step.labels, tau=1 / 16)
    if prototype:
        centroids = class_prototypes(old.embeddings, old.labels, kind="centroid")
        want += small_arcface(step.embeddings, centroids, step.labels)
    assert torch.allclose(ours, 0.5 * want / sum(switches.values()))


def test_the_shared_classifier_of_unibct_plus_learns_from_the_old_embeddings():
    old, step = knowledge(), batch()
    UnibctPlus(old, SETTINGS, own=False).loss(step).backward()
    before = small_arcface(old.embeddings[step.rows], step.class_weights, step.labels)
    stepped = step.class_weights.detach() - 0.1 * step.class_weights.grad
    assert small_arcface(old.embeddings[step.rows], stepped, step.labels) < before
