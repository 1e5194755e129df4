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


def test_raw_centres_and_a_class_without_a_ball():
    # From (1, 0) to (0.2, 0.6) it is 1 as the centre is, and √(2 − 2·0.2/√0.4) from length 1.
    x = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    centres = torch.tensor([[0.2, 0.6], [0.5, 0.0]], dtype=torch.float64)
    radius = torch.tensor([0.25, torch.inf], dtype=torch.float64)
    loss = point_to_set(x, centres, radius, unit_centres=False)
    assert math.isclose(loss.item(), 1 - 0.25)
    scaled = point_to_set(x, centres, radius)
    assert math.isclose(scaled.item(), math.sqrt(2 - 0.4 / math.sqrt(0.4)) - 0.25)
    loss.backward()
    assert torch.isfinite(x.grad).all()
    assert (x.grad[1] == 0).all()
