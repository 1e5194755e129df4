import math

import pytest
import torch

from tests.losses.cases import case, naive_unit_rows
from unibct.losses.point_to_set import point_to_set


def test_point_to_set_equals_a_naive_loop():
    x, centres = case(batch=10)[0], case(batch=10, seed=1)[0]
    radius = torch.linspace(0.5, 2, 10, dtype=torch.float64).requires_grad_()
    beyond = [
        math.dist(a, b) - r
        for a, b, r in zip(
            naive_unit_rows(x), naive_unit_rows(centres), radius.tolist(), strict=True
        )
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
