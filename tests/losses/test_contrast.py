import math

import pytest
import torch

from tests.losses.cases import case, dot, naive_unit_rows, over_ranks
from unibct.losses.contrast import contrast, mixed_contrast, neighbour_contrast


def test_contrast_equals_a_naive_loop():
    x, _, y = case(batch=12, classes=4)
    old, _, _ = case(batch=12, seed=1)
    unit_x, unit_old = (t / t.norm(dim=1, keepdim=True) for t in (x, old))
    total = 0.0
    for i in range(12):
        positive = math.exp(float(unit_x[i] @ unit_old[i]) / 0.05)
        negatives = sum(
            math.exp(float(unit_x[i] @ unit_old[j]) / 0.05) for j in range(12) if y[j] != y[i]
        )
        total -= math.log(positive / (positive + negatives))
    assert math.isclose(float(contrast(x, old, y)), total / 12, rel_tol=1e-9)


def test_contrast_without_negatives_is_zero():
    x, _, _ = case(batch=3)
    assert float(contrast(x, x, torch.zeros(3).long())) == 0


@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_neighbour_contrast_equals_a_naive_loop(tau):
    x, own, others = (case(batch=n, seed=s)[0] for n, s in ((6, 0), (6, 1), (20, 2)))
    labels = torch.tensor([0, 1, 2, 3, 3, 0])
    other_labels = case(batch=20, classes=3, seed=2)[2]
    assert sorted(set(other_labels.tolist())) == [0, 1, 2]  # class 3 has no positive
    total, counted, queue = 0.0, 0, naive_unit_rows(others)
    for z, v, label in zip(naive_unit_rows(x), naive_unit_rows(own), labels.tolist(), strict=True):
        positives = [j for j in range(20) if other_labels[j] == label]
        if not positives:
            continue
        counted += 1
        everything = sum(math.exp(dot(z, other) / tau) for other in queue)
        for j in positives:
            share = math.exp(dot(z, queue[j]) / tau) / everything
            total -= (1 + dot(v, queue[j])) / 2 * math.log(share) / len(positives)
    assert counted == 4
    ours = neighbour_contrast(
        x, labels, own_old=own, others=others, other_labels=other_labels, tau=tau
    )
    assert math.isclose(ours.item(), total / counted, rel_tol=1e-9)


def test_neighbour_contrast_draws_to_the_consensus():
    # The positive at the image's own old embedding counts 1, the opposite one nothing.
    own = torch.tensor([[1.0, 0.0]])
    others = torch.tensor([[2.0, 0.0], [-3.0, 0.0]])
    new = torch.tensor([[0.0, 1.0]], requires_grad=True)
    label = torch.zeros(1).long()
    loss = neighbour_contrast(
        new, label, own_old=own, others=others, other_labels=torch.zeros(2).long(), tau=1.0
    )
    loss.backward()
    assert math.isclose(loss.item(), math.log(2) / 2, rel_tol=1e-6)
    assert torch.allclose(new.grad, torch.tensor([[-0.5, 0.0]]))


def test_neighbour_contrast_without_a_positive_is_zero():
    x, others, labels = case(batch=4, classes=5)
    x.requires_grad_()
    for queue in (others, others[:0]):
        beyond = torch.full((len(queue),), 9)
        loss = neighbour_contrast(x, labels, own_old=x.detach(), others=queue, other_labels=beyond)
        (gradient,) = torch.autograd.grad(loss, x)
        assert loss.item() == 0
        assert (gradient == 0).all()


def test_neighbour_contrast_has_finite_gradients_at_the_positive_itself():
    x, _, labels = case(batch=8, classes=3, dtype=torch.float32)
    x.requires_grad_()
    old = x.detach()
    neighbour_contrast(x, labels, own_old=old, others=old, other_labels=labels, tau=1e-3).backward()
    assert torch.isfinite(x.grad).all()


def naive_mixed_contrast(new, old, labels, tau):
    """RACT's formula by loops over images, with torch's own gradients."""
    new, old = (rows / rows.norm(dim=1, keepdim=True) for rows in (new, old))
    terms = []
    for i, label in enumerate(labels.tolist()):
        own = torch.exp(new[i] @ old[i] / tau)
        everything = own
        for j in range(len(labels)):
            if labels[j] != label:
                everything = everything + torch.exp(new[i] @ old[j] / tau)
                everything = everything + torch.exp(new[i] @ new[j] / tau)
        terms.append(-torch.log(own / everything))
    return torch.stack(terms).mean()


@pytest.mark.parametrize("tau", [0.01, 0.3])
def test_mixed_contrast_equals_a_naive_loop(tau):
    x, _, y = case(batch=12, classes=4)
    old = case(batch=12, seed=1)[0]
    x.requires_grad_()
    ours, theirs = mixed_contrast(x, old, y, tau=tau), naive_mixed_contrast(x, old, y, tau)
    assert math.isclose(ours.item(), theirs.item(), rel_tol=1e-9)
    gradients = [torch.autograd.grad(loss, x)[0] for loss in (ours, theirs)]
    assert torch.allclose(*gradients, rtol=1e-8)


def test_mixed_contrast_by_hand():
    # Both images are at their old embeddings, which are orthogonal: e^2 / (e^2 + 1 + 1) each.
    rows = torch.eye(2, dtype=torch.float64)
    loss = mixed_contrast(3 * rows, rows, torch.tensor([0, 1]), tau=0.5)
    assert math.isclose(loss.item(), math.log1p(2 * math.exp(-2)), rel_tol=1e-12)
    assert math.isclose(
        contrast(rows, rows, torch.tensor([0, 1]), tau=0.5), math.log1p(math.exp(-2))
    )


def test_mixed_contrast_without_negatives_is_zero():
    x, _, _ = case(batch=3)
    x.requires_grad_()
    loss = mixed_contrast(x, case(batch=3, seed=1)[0], torch.zeros(3).long())
    loss.backward()
    assert loss.item() == 0
    assert (x.grad == 0).all()


@pytest.mark.parametrize("world", [2, 3])
def test_mixed_contrast_of_several_ranks_is_that_of_one(world):
    x, weights, y = case(batch=12, classes=4)
    old = case(batch=12, seed=1)[0]

    def loss(new, rows, labels, part, own):
        return mixed_contrast(new, old[own], labels, tau=0.1, ranks=part.ranks)

    one, many = (over_ranks(n, loss, x, weights, y) for n in (1, world))
    for found, expected in zip(many, one, strict=True):
        assert torch.allclose(found, expected, rtol=1e-9)
