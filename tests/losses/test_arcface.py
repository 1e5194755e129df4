import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

import unibct
from tests.losses.cases import case
from unibct.losses.arcface import widened_cosine


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
