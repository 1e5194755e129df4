import math

import pytest
import torch

from tests.losses.cases import case, dot, naive_unit_rows, over_ranks
from unibct.distributed.class_shards import ClassPart
from unibct.losses.cone import angles, outside_cone
from unibct.losses.unit_rows import unit_rows


def test_angles_equal_the_arc_cosine():
    a, b = (unit_rows(case(batch=20, seed=seed)[0]) for seed in (0, 1))
    wanted = [math.acos(dot(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert torch.allclose(angles(a, b), torch.tensor(wanted, dtype=torch.float64))


def test_small_angles_in_single_precision():
    tiny = torch.tensor([[1.0, 3e-5]])
    assert math.isclose(angles(torch.tensor([[1.0, 0.0]]), tiny).item(), 3e-5, rel_tol=1e-6)


def test_angles_of_parallel_and_opposite_rows_have_finite_gradients():
    x = unit_rows(case(batch=6, dtype=torch.float32)[0])
    signs = torch.tensor([1.0, -1.0]).repeat(3)[:, None]
    a = x.clone().requires_grad_()
    found = angles(a, x * signs)
    assert torch.allclose(found, torch.tensor([0.0, math.pi]).repeat(3), atol=1e-6)
    found.sum().backward()
    assert torch.isfinite(a.grad).all()


def lce_case(classes=7, batch=12):
    x, centres, y = case(batch=batch, classes=classes)
    return x, unit_rows(centres), y, torch.linspace(0.2, 1.8, classes, dtype=torch.float64)


def naive_outside_cone(x, y, centres, largest):
    total = 0.0
    for z, label in zip(naive_unit_rows(x), y.tolist(), strict=True):
        total += max(0.0, math.acos(dot(z, centres[label].tolist())) - largest[label].item())
    return total / len(y)


def test_outside_cone_equals_a_naive_loop_and_so_does_its_gradient():
    x, centres, y, largest = lce_case()
    x.requires_grad_()
    ours = outside_cone(x, y, ClassPart(7), centres=centres, largest=largest)
    assert math.isclose(ours.item(), naive_outside_cone(x, y, centres, largest), rel_tol=1e-12)
    (gradient,) = torch.autograd.grad(ours, x)
    inside = gradient.abs().sum(dim=1) == 0
    assert inside.any()
    assert not inside.all()
    for row, column in ((0, 0), (3, 5), (7, 2), (11, 7)):
        step = torch.zeros_like(x)
        step[row, column] = 1e-6
        moved = [
            naive_outside_cone(x.detach() + sign * step, y, centres, largest) for sign in (1, -1)
        ]
        assert math.isclose(gradient[row, column], (moved[0] - moved[1]) / 2e-6, abs_tol=1e-8)


def test_outside_cone_by_hand():
    # 90° and 0° from the centre, 0.5 allowed: (π/2 − 0.5 + 0)/2.
    new = torch.tensor([[0.0, 2.0], [5.0, 0.0]]).double()
    centres, largest = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([0.5]).double()
    loss = outside_cone(new, torch.zeros(2).long(), ClassPart(1), centres=centres, largest=largest)
    assert math.isclose(loss.item(), (math.pi / 2 - 0.5) / 2, rel_tol=1e-12)


def test_an_embedding_at_its_centre_or_opposite_has_finite_gradients():
    centres = unit_rows(case(classes=2, dtype=torch.float32)[1])
    new = torch.cat([centres, -centres]).requires_grad_()
    labels, largest = torch.tensor([0, 1, 0, 1]), torch.tensor([0.0, 0.5])
    loss = outside_cone(new, labels, ClassPart(2), centres=centres, largest=largest)
    loss.backward()
    assert math.isclose(loss.item(), (2 * math.pi - 0.5) / 4, rel_tol=1e-5)
    assert torch.isfinite(new.grad).all()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("sampled", [False, True])
def test_outside_cone_of_several_ranks_is_that_of_one(world, sampled):
    x, centres, y, largest = lce_case()
    chosen = torch.unique(torch.cat([y, torch.tensor([3])])) if sampled else None

    def loss(new, rows, labels, part, own):
        own_largest = part.rows(largest[part.range.start : part.range.stop])
        return outside_cone(new, labels, part, centres=rows.detach(), largest=own_largest)

    one = over_ranks(1, loss, x, centres, y)
    many = over_ranks(world, loss, x, centres, y, chosen)
    assert one[0] > 0
    for found, expected in zip(many, one, strict=True):
        assert torch.allclose(found, expected, rtol=1e-9)
