import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.distributed.thread_ranks import run_ranks
from tests.loss_cases import dot, naive_unit_rows
from tests.methods.cases import SETTINGS, batch, knowledge, refreshed_loss, small_arcface
from unibct.distributed.ranks import ClassesInUse
from unibct.errors import UserError
from unibct.losses import contrast, mixed_contrast, neighbour_contrast
from unibct.methods import successors as lce
from unibct.methods.base import Settings
from unibct.methods.successors import Lce, MixBct, Nccl


@pytest.mark.parametrize(("size", "drawn"), [(1, 0), (3, 0), (4, 1), (9, 2), (10, 3), (20, 6)])
def test_mixbct_replaces_three_tenths_of_a_batch(size, drawn):
    old, step = knowledge(), batch(range(size))
    nothing_dropped = Settings(scale=16.0, margin=0.3, tau=0.05, lam=0.9, drop=0.0)
    mixed = MixBct(old, nothing_dropped).classified(step)
    is_old = (mixed == old.embeddings[step.rows]).all(dim=1)
    is_new = (mixed == step.embeddings).all(dim=1)
    assert int(is_old.sum()) == drawn
    assert torch.equal(is_new, ~is_old)


def test_mixbct_never_takes_an_old_outlier():
    old, rng = knowledge(), np.random.default_rng(0)
    method = MixBct(old, SETTINGS)
    ever = torch.zeros(24, dtype=torch.bool)
    for _ in range(50):
        step = batch(range(24), rng=rng)
        replaced = (method.classified(step) != step.embeddings).any(dim=1)
        assert int(replaced.sum()) <= 7
        ever |= replaced
    # Of six images of a class, drop = 0.2 leaves out the one farthest from the mean.
    outliers = []
    for start in range(0, 24, 6):
        rows = old.embeddings[start : start + 6].tolist()
        mean = [sum(column) / 6 for column in zip(*rows, strict=True)]
        outliers.append(start + max(range(6), key=lambda i: math.dist(rows[i], mean)))
    assert (~ever).nonzero().flatten().tolist() == outliers


def test_mixbct_draws_from_the_batch_s_generator_alone():
    method = MixBct(knowledge(), SETTINGS)

    def mixed(seed):
        return method.classified(batch(range(24), rng=np.random.default_rng(seed)))

    assert torch.equal(mixed(3), mixed(3))
    assert not torch.equal(mixed(3), mixed(4))


def test_mixbct_trains_the_classifier_on_both_and_the_network_on_new_rows_only():
    step = batch(range(24))
    mixed = MixBct(knowledge(), SETTINGS).classified(step)
    replaced = (mixed != step.embeddings).any(dim=1)
    assert 0 < int(replaced.sum()) < 24
    of_old = small_arcface(mixed[replaced], step.class_weights, step.labels[replaced])
    (gradient,) = torch.autograd.grad(of_old, step.class_weights, retain_graph=True)
    assert float(gradient.abs().sum()) > 0
    small_arcface(mixed, step.class_weights, step.labels).backward()
    assert (step.embeddings.grad[replaced] == 0).all()
    assert (step.embeddings.grad[~replaced] != 0).any(dim=1).all()


def test_the_queue_of_nccl_holds_the_last_images_seen_and_survives_a_checkpoint():
    old = knowledge()
    method = Nccl(old, SETTINGS, queue=10)
    assert len(method.state()["queue"]) == 0
    seen = []
    for seed, rows in enumerate([(0, 7, 13, 23), (1, 8, 14, 22), (2, 9, 15, 21)]):
        step = batch(rows, seed)
        ours = method.loss(step)
        seen = [*seen, *rows][-10:]
        assert method.state()["queue"].tolist() == seen
        known = {"others": old.embeddings[seen], "other_labels": old.labels[seen], "tau": 0.05}
        own_old = old.embeddings[list(rows)]
        want = neighbour_contrast(step.embeddings, step.labels, own_old=own_old, **known)
        assert torch.equal(ours, want)
    assert len(seen) == 10
    other = Nccl(old, SETTINGS, queue=10)
    fresh = other.loss(batch())
    other.load_state({k: v.clone() for k, v in method.state().items()})
    again = method.loss(batch())
    assert torch.equal(other.loss(batch()), again)
    assert not torch.equal(fresh, again)


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
    part = ClassesInUse(4, sampled=torch.tensor(chosen)) if sampled else None
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
        shared = ClassesInUse(4, ranks, rows)
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


def test_ract_is_its_formula_at_the_published_temperature():
    loss, step = refreshed_loss("ract")
    old_rows = knowledge().embeddings[step.rows]
    rows = {"new": step.embeddings, "old": old_rows, "tau": 0.01}
    assert torch.equal(loss, mixed_contrast(step.labels, **rows))
    assert loss > contrast(step.labels, **rows)  # more negatives
