import dataclasses
import math

import pytest
import torch

from tests.distributed.thread_ranks import run_ranks
from tests.losses.cases import dot, naive_unit_rows
from tests.methods.cases import SETTINGS, batch, knowledge
from unibct.distributed.class_shards import ClassPart
from unibct.errors import UserError
from unibct.methods import lce
from unibct.methods.lce import Lce


def naive_lce(old, step):
    """LCE's formula by loops in double precision."""
    vectors, labels = naive_unit_rows(old.embeddings.double()), old.labels.tolist()
    centres, largest = [], []
    for c in range(4):
        members = [v for v, label in zip(vectors, labels, strict=True) if label == c]
        sums = torch.tensor(members, dtype=torch.float64).sum(dim=0, keepdim=True)
        centres.append(naive_unit_rows(sums)[0])
        largest.append(max(math.acos(dot(v, centres[c])) for v in members))
    outside = 0.0
    for z, c in zip(naive_unit_rows(step.embeddings.double()), step.labels.tolist(), strict=True):
        outside += max(0.0, math.acos(dot(z, centres[c])) - largest[c])
    weights = naive_unit_rows(step.class_weights.double())
    gap = sum(1 - dot(w, p) for w, p in zip(weights, centres, strict=True))
    return outside / len(step.labels) + gap / 4


@pytest.mark.parametrize("rows", [1_000_000, 5])
def test_lce_is_its_formula(rows, monkeypatch):
    monkeypatch.setattr(lce, "_ROWS", rows)
    old, step = knowledge(), batch()
    assert math.isclose(Lce(old, SETTINGS).loss(step).item(), naive_lce(old, step), rel_tol=1e-5)


def test_old_embeddings_at_their_class_weights_cost_nothing():
    old, step = knowledge(), batch(range(24))
    method = Lce(old, SETTINGS)
    weights = old.prototypes("centroid", SETTINGS)
    step = dataclasses.replace(step, embeddings=3 * old.embeddings, class_weights=weights)
    assert method.loss(step).item() == pytest.approx(0, abs=1e-6)
    step = dataclasses.replace(step, class_weights=-weights)
    assert method.loss(step).item() == pytest.approx(2, abs=1e-6)


def test_embeddings_on_disk_and_in_memory_give_the_same():
    old, step = knowledge(), batch()
    stored = dataclasses.replace(old, embeddings=old.embeddings.numpy())
    losses = [Lce(knows, SETTINGS).loss(step) for knows in (old, stored)]
    assert torch.allclose(*losses, rtol=1e-6)


@pytest.mark.parametrize("sampled", [False, True])
def test_ranks_that_share_the_classes_find_what_one_finds(sampled):
    old, step = knowledge(), batch((0, 7, 13, 5, 9, 2))  # class 3 is absent
    chosen = [0, 1, 2] if sampled else [0, 1, 2, 3]
    part = ClassPart(4, sampled=torch.tensor(chosen)) if sampled else None
    weights = step.class_weights.detach()[chosen].requires_grad_()
    whole = dataclasses.replace(step, class_weights=weights, part=part)
    loss = Lce(old, SETTINGS).loss(whole)
    loss.backward()

    def of_rank(ranks):
        own, classes = ranks.batch_slice(6), ranks.share(4)
        mine = [c for c in chosen if c in classes]
        rows = torch.tensor(mine) - classes.start if sampled else None
        place = torch.tensor([chosen.index(c) for c in mine])
        new, shard = (
            tensor.detach()[index].requires_grad_()
            for tensor, index in ((step.embeddings, own), (weights, place))
        )
        shared = ClassPart(4, ranks, rows)
        part_of_step = dataclasses.replace(
            step, embeddings=new, labels=step.labels[own], class_weights=shard, part=shared
        )
        found = Lce(dataclasses.replace(old, ranks=ranks), SETTINGS).loss(part_of_step)
        found.backward()
        return found.detach(), new.grad, shard.grad

    losses, gradients, shards = zip(*run_ranks(2, of_rank), strict=True)
    assert torch.allclose(torch.stack(losses), loss.detach(), rtol=1e-5)
    assert torch.allclose(torch.cat(gradients) / 2, step.embeddings.grad, atol=1e-6)
    assert torch.allclose(torch.cat(shards), weights.grad, atol=1e-6)


def test_lce_without_class_weights_is_refused():
    step = dataclasses.replace(batch(), class_weights=None)
    with pytest.raises(UserError, match="lce needs class_weights"):
        Lce(knowledge(), SETTINGS).loss(step)
