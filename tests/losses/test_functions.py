import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

import unibct
from unibct.losses.arcface import widened_cosine
from unibct.losses.contrast import contrast, neighbour_contrast
from unibct.losses.point_to_set import point_to_set
from unibct.losses.regress import regress


def case(batch=32, dim=8, classes=11, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, dim, generator=generator, dtype=dtype)
    w = torch.randn(classes, dim, generator=generator, dtype=dtype)
    y = torch.randint(0, classes, (batch,), generator=generator)
    return x, w, y


@pytest.mark.parametrize(("scale", "margin"), [(64.0, 0.5), (16.0, 0.3), (8.0, 0.0)])
def test_arcface_equals_pytorch_metric_learning(scale, margin):
    x, w, y = case()
    x.requires_grad_()
    w.requires_grad_()
    ours = unibct.arcface(x, w, y, scale=scale, margin=margin)
    grads = torch.autograd.grad(ours, [x, w])
    oracle = ArcFaceLoss(len(w), x.shape[1], margin=math.degrees(margin), scale=scale).double()
    oracle.W.data = w.detach().T.clone()
    loss = oracle(x, y)
    oracle_grads = torch.autograd.grad(loss, [x, oracle.W])
    assert torch.allclose(ours, loss, rtol=1e-6)
    assert torch.allclose(grads[0], oracle_grads[0], rtol=1e-4, atol=1e-6)
    assert torch.allclose(grads[1], oracle_grads[1].T, rtol=1e-4, atol=1e-6)


def test_arcface_equals_a_naive_loop():
    x, w, y = case(batch=5)
    total = 0.0
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        logits = []
        for j, vector in enumerate(w.tolist()):
            dot = sum(a * b for a, b in zip(row, vector, strict=True))
            angle = math.acos(dot / math.hypot(*row) / math.hypot(*vector))
            assert angle + 0.5 < math.pi
            logits.append(64 * math.cos(angle + (0.5 if j == label else 0)))
        top = max(logits)
        total += top + math.log(sum(math.exp(z - top) for z in logits)) - logits[label]
    assert math.isclose(float(unibct.arcface(x, w, y)), total / 5, rel_tol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_arcface_is_safe_at_theta_0_and_pi(dtype, side):
    x, w, _ = case(dtype=dtype)
    x = (side * w[:4]).clone().requires_grad_()
    w = w.clone().requires_grad_()
    loss = unibct.arcface(x, w, torch.arange(4))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(w.grad).all()


def test_the_target_logit_falls_with_the_angle_everywhere():
    theta = torch.linspace(0, math.pi, 10_001, dtype=torch.float64)
    widened = widened_cosine(theta.cos(), 0.5)
    assert (widened.diff() < 0).all()
    inside = theta < math.pi - 0.5
    assert torch.allclose(widened[inside], (theta + 0.5).cos()[inside], atol=1e-7)


def test_frozen_class_vectors_get_no_gradient_and_numpy_is_taken():
    x, w, y = case()
    x.requires_grad_()
    unibct.arcface(x, w, y).backward()
    assert x.grad is not None
    assert w.grad is None
    from_numpy = unibct.arcface(x.detach().numpy(), w.numpy().astype(np.float32), y.numpy())
    assert isinstance(from_numpy, torch.Tensor)
    assert from_numpy.ndim == 0
    assert torch.allclose(from_numpy, unibct.arcface(x, w, y).detach(), rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "w", "y", "message"),
    [
        (torch.ones(2, 3), torch.ones(4, 5), torch.zeros(2).long(), "dimension 3"),
        (torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 4]), "label 4 has no row"),
        (torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, -1]), "label -1 has no row"),
        (torch.ones(2, 3), torch.ones(4, 3), torch.zeros(3).long(), "2 integers"),
        (torch.ones(3), torch.ones(4, 3), torch.zeros(3).long(), "batch, dim"),
    ],
)
def test_arcface_names_bad_input(x, w, y, message):
    with pytest.raises(ValueError, match=message):
        unibct.arcface(x, w, y)


def test_regress_by_hand():
    new = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    old = torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    assert math.isclose(float(regress(new, old)), (0 + 2) / 2, rel_tol=1e-6)


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


def unit_rows(vectors):
    return [[a / math.hypot(*row) for a in row] for row in vectors.tolist()]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_neighbour_contrast_equals_a_naive_loop(tau):
    x, own, others = (case(batch=n, seed=s)[0] for n, s in ((6, 0), (6, 1), (20, 2)))
    labels = torch.tensor([0, 1, 2, 3, 3, 0])
    other_labels = case(batch=20, classes=3, seed=2)[2]
    assert sorted(set(other_labels.tolist())) == [0, 1, 2]  # class 3 has no positive
    total, counted, queue = 0.0, 0, unit_rows(others)
    for z, v, label in zip(unit_rows(x), unit_rows(own), labels.tolist(), strict=True):
        positives = [j for j in range(20) if other_labels[j] == label]
        if not positives:
            continue
        counted += 1
        everything = sum(math.exp(dot(z, other) / tau) for other in queue)
        for j in positives:
            share = math.exp(dot(z, queue[j]) / tau) / everything
            total -= (1 + dot(v, queue[j])) / 2 * math.log(share) / len(positives)
    assert counted == 4
    ours = neighbour_contrast(x, labels, own=own, others=others, other_labels=other_labels, tau=tau)
    assert math.isclose(ours.item(), total / counted, rel_tol=1e-9)


def test_neighbour_contrast_draws_to_the_consensus():
    # The positive at the image's own old embedding counts 1, the opposite one nothing.
    own = torch.tensor([[1.0, 0.0]])
    others = torch.tensor([[2.0, 0.0], [-3.0, 0.0]])
    new = torch.tensor([[0.0, 1.0]], requires_grad=True)
    label = torch.zeros(1).long()
    loss = neighbour_contrast(
        new, label, own=own, others=others, other_labels=torch.zeros(2).long(), tau=1.0
    )
    loss.backward()
    assert math.isclose(loss.item(), math.log(2) / 2, rel_tol=1e-6)
    assert torch.allclose(new.grad, torch.tensor([[-0.5, 0.0]]))


def test_neighbour_contrast_without_a_positive_is_zero():
    x, others, labels = case(batch=4, classes=5)
    x.requires_grad_()
    for queue in (others, others[:0]):
        beyond = torch.full((len(queue),), 9)
        loss = neighbour_contrast(x, labels, own=x.detach(), others=queue, other_labels=beyond)
        (gradient,) = torch.autograd.grad(loss, x)
        assert loss.item() == 0
        assert (gradient == 0).all()


def test_neighbour_contrast_has_finite_gradients_at_the_positive_itself():
    x, _, labels = case(batch=8, classes=3, dtype=torch.float32)
    x.requires_grad_()
    old = x.detach()
    neighbour_contrast(x, labels, own=old, others=old, other_labels=labels, tau=1e-3).backward()
    assert torch.isfinite(x.grad).all()


def test_point_to_set_equals_a_naive_loop():
    x, centres = case(batch=10)[0], case(batch=10, seed=1)[0]
    radius = torch.linspace(0.5, 2, 10, dtype=torch.float64).requires_grad_()
    beyond = [
        math.dist(a, b) - r
        for a, b, r in zip(unit_rows(x), unit_rows(centres), radius.tolist(), strict=True)
    ]
    outside = [b for b in beyond if b > 0]
    assert 0 < len(outside) < 10
    loss = point_to_set(x, centres, radius)
    assert math.isclose(loss.item(), sum(outside) / len(outside), rel_tol=1e-9)
    loss.backward()
    slopes = [-1 / len(outside) if b > 0 else 0 for b in beyond]
    assert torch.allclose(radius.grad, torch.tensor(slopes, dtype=torch.float64))


@pytest.mark.parametrize("radius", [0.0, 2.0])
def test_point_to_set_with_nobody_outside_is_zero(radius):
    x, _, _ = case(batch=4)
    x.requires_grad_()
    loss = point_to_set(x, x.detach(), torch.full((4,), radius))
    loss.backward()
    assert loss.item() == 0
    assert (x.grad == 0).all()
