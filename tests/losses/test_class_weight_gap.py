import math

import pytest
import torch

from tests.losses.cases import case, dot, naive_unit_rows, over_ranks
from unibct.losses.class_weight_gap import class_weight_gap
from unibct.losses.unit_rows import unit_rows


def naive_gap(weights, centres):
    pairs = zip(naive_unit_rows(weights), centres.tolist(), strict=True)
    return sum(1 - dot(w, p) for w, p in pairs) / len(weights)


def test_it_equals_a_naive_loop_and_so_does_its_gradient():
    weights, centres = case(classes=9)[1].requires_grad_(), unit_rows(case(classes=9, seed=1)[1])
    ours = class_weight_gap(weights, centres)
    assert math.isclose(ours.item(), naive_gap(weights, centres), rel_tol=1e-12)
    (gradient,) = torch.autograd.grad(ours, weights)
    step = torch.zeros_like(weights)
    step[4, 2] = 1e-6
    moved = [naive_gap(weights.detach() + sign * step, centres) for sign in (1, -1)]
    assert math.isclose(gradient[4, 2], (moved[0] - moved[1]) / 2e-6, abs_tol=1e-8)


def test_by_hand():
    # At the centre, at 90° and opposite: (0 + 1 + 2)/3.
    weights = torch.tensor([[3.0, 0.0], [0.0, 0.5], [-2.0, 0.0]])
    assert class_weight_gap(weights, torch.tensor([[1.0, 0.0]] * 3)).item() == 1


@pytest.mark.parametrize("sampled", [None, [0, 2, 3, 7, 8]])
@pytest.mark.parametrize("world", [2, 3])
def test_several_ranks_find_what_one_finds(world, sampled):
    x, weights, y = case(batch=12, classes=10)
    centres = unit_rows(case(classes=10, seed=1)[1])
    chosen = None if sampled is None else torch.tensor(sampled)

    def loss(new, rows, labels, part, own):
        own_centres = centres[part.range.start : part.range.stop]
        return class_weight_gap(rows, part.rows(own_centres), ranks=part.ranks) + 0 * new.sum()

    one, many = (over_ranks(n, loss, x, weights, y, chosen) for n in (1, world))
    assert (one[2] != 0).any(dim=1).sum() == (10 if sampled is None else 5)
    for found, expected in zip(many, one, strict=True):
        assert torch.allclose(found, expected, rtol=1e-9)
