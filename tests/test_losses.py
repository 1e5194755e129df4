import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

from tests.distributed.thread_ranks import run_ranks
from tests.distributed.twins import Twins
from tests.loss_cases import case, dot, naive_unit_rows, over_ranks
from unibct.distributed.ranks import ALONE, ClassesInUse
from unibct.losses import (
    angles,
    arcface,
    class_weight_gap,
    contrast,
    mean_over_ranks,
    mixed_contrast,
    neighbour_contrast,
    outside_cone,
    point_to_set,
    regress,
    sharded_arcface,
    sum_over_ranks,
    unit_rows,
    widened_cosine,
)


def numeric_slope(function, x, place):
    """How a naive function changes with one of its inputs."""
    step = torch.zeros_like(x)
    step[place] = 1e-6
    return (function(x.detach() + step) - function(x.detach() - step)) / 2e-6


def test_rows_have_length_1():
    assert torch.allclose(unit_rows(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_becomes_single(dtype):
    rows = unit_rows(torch.ones(2, 3, dtype=dtype))
    assert rows.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(rows.norm(dim=1).float(), torch.ones(2))


def test_one_process_keeps_its_total():
    total = torch.tensor(6.0)
    assert sum_over_ranks(total, ALONE) is total


def test_each_rank_gets_the_sum_of_all_and_the_gradient_of_its_own():
    def of_rank(ranks):
        x = torch.tensor(float(ranks.rank), requires_grad=True)
        own = (x + 1).square()  # 1, 4, 9
        found = sum_over_ranks(own, ranks)
        (2 * found).backward()
        return found.item(), x.grad.item(), own.item()

    assert run_ranks(3, of_rank) == [(14.0, 4.0, 1.0), (14.0, 8.0, 4.0), (14.0, 12.0, 9.0)]


@pytest.mark.parametrize(
    ("total", "count", "ranks", "wanted"),
    [(6.0, 4, ALONE, 1.5), (0.0, 0, ALONE, 0), (6.0, 4, Twins(), 1.5)],  # twins: 6 · 2 / 8
)
def test_each_rank_returns_the_mean_of_all_terms(total, count, ranks, wanted):
    assert float(mean_over_ranks(torch.tensor(total), torch.tensor(count), ranks)) == wanted


@pytest.mark.parametrize(("scale", "margin"), [(64.0, 0.5), (16.0, 0.3), (8.0, 0.0)])
def test_arcface_equals_pytorch_metric_learning(scale, margin):
    x, w, y = case()
    x.requires_grad_()
    w.requires_grad_()
    ours = arcface(x, w, y, scale=scale, margin=margin)
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
    assert math.isclose(float(arcface(x, w, y)), total / 5, rel_tol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_arcface_is_safe_at_theta_0_and_pi(dtype, side):
    x, w, _ = case(dtype=dtype)
    x = (side * w[:4]).clone().requires_grad_()
    w = w.clone().requires_grad_()
    loss = arcface(x, w, torch.arange(4))
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
    arcface(x, w, y).backward()
    assert x.grad is not None
    assert w.grad is None
    from_numpy = arcface(x.detach().numpy(), w.numpy().astype(np.float32), y.numpy())
    assert isinstance(from_numpy, torch.Tensor)
    assert from_numpy.ndim == 0
    assert torch.allclose(from_numpy, arcface(x, w, y).detach(), rtol=1e-5)


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
        arcface(x, w, y)


def test_arcface_of_classes_in_use_and_of_all_of_them():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(6, 4, generator=generator, requires_grad=True)
    weights = torch.randn(9, 4, generator=generator, requires_grad=True)
    labels, rows = torch.tensor([0, 4, 4, 7, 8, 0]), torch.tensor([0, 2, 4, 7, 8])
    loss = sharded_arcface(embeddings, weights, labels, ClassesInUse(9), scale=16.0, margin=0.3)
    assert torch.equal(loss, arcface(embeddings, weights, labels, scale=16.0, margin=0.3))
    part = ClassesInUse(9, ALONE, rows)
    found = sharded_arcface(embeddings, part.rows(weights), labels, part)
    places = torch.tensor([0, 2, 2, 3, 4, 0])
    expected = arcface(embeddings, weights[rows], places)
    assert torch.allclose(found, expected)
    ours = torch.autograd.grad(found, (embeddings, weights), retain_graph=True)
    theirs = torch.autograd.grad(expected, (embeddings, weights))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert (ours[1][[1, 3, 5, 6]] == 0).all()


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
    assert math.isclose(float(contrast(y, new=x, old=old)), total / 12, rel_tol=1e-9)


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
    ours, theirs = mixed_contrast(y, new=x, old=old, tau=tau), naive_mixed_contrast(x, old, y, tau)
    assert math.isclose(ours.item(), theirs.item(), rel_tol=1e-9)
    gradients = [torch.autograd.grad(loss, x)[0] for loss in (ours, theirs)]
    assert torch.allclose(*gradients, rtol=1e-8)


def test_mixed_contrast_by_hand():
    # Both images are at their old embeddings, which are orthogonal: e^2 / (e^2 + 1 + 1) each.
    rows = torch.eye(2, dtype=torch.float64)
    loss = mixed_contrast(torch.tensor([0, 1]), new=3 * rows, old=rows, tau=0.5)
    assert math.isclose(loss.item(), math.log1p(2 * math.exp(-2)), rel_tol=1e-12)
    assert math.isclose(
        contrast(torch.tensor([0, 1]), new=rows, old=rows, tau=0.5), math.log1p(math.exp(-2))
    )


def test_regress_by_hand():
    new = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    old = torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    assert math.isclose(float(regress(new=new, old=old)), (0 + 2) / 2, rel_tol=1e-6)


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
    ours = outside_cone(x, y, ClassesInUse(7), centres=centres, largest=largest)
    assert math.isclose(ours.item(), naive_outside_cone(x, y, centres, largest), rel_tol=1e-12)
    (gradient,) = torch.autograd.grad(ours, x)
    inside = gradient.abs().sum(dim=1) == 0
    assert inside.any()
    assert not inside.all()
    for place in ((0, 0), (3, 5), (7, 2), (11, 7)):
        slope = numeric_slope(lambda z: naive_outside_cone(z, y, centres, largest), x, place)
        assert math.isclose(gradient[place], slope, abs_tol=1e-8)


def test_outside_cone_by_hand():
    # 90° and 0° from the centre, 0.5 allowed: (π/2 − 0.5 + 0)/2.
    new = torch.tensor([[0.0, 2.0], [5.0, 0.0]]).double()
    centres, largest = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([0.5]).double()
    loss = outside_cone(
        new, torch.zeros(2).long(), ClassesInUse(1), centres=centres, largest=largest
    )
    assert math.isclose(loss.item(), (math.pi / 2 - 0.5) / 2, rel_tol=1e-12)


def test_an_embedding_at_its_centre_or_opposite_has_finite_gradients():
    centres = unit_rows(case(classes=2, dtype=torch.float32)[1])
    new = torch.cat([centres, -centres]).requires_grad_()
    labels, largest = torch.tensor([0, 1, 0, 1]), torch.tensor([0.0, 0.5])
    loss = outside_cone(new, labels, ClassesInUse(2), centres=centres, largest=largest)
    loss.backward()
    assert math.isclose(loss.item(), (2 * math.pi - 0.5) / 4, rel_tol=1e-5)
    assert torch.isfinite(new.grad).all()


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


def naive_gap(weights, centres):
    pairs = zip(naive_unit_rows(weights), centres.tolist(), strict=True)
    return sum(1 - dot(w, p) for w, p in pairs) / len(weights)


def test_it_equals_a_naive_loop_and_so_does_its_gradient():
    weights, centres = case(classes=9)[1].requires_grad_(), unit_rows(case(classes=9, seed=1)[1])
    ours = class_weight_gap(weights, centres)
    assert math.isclose(ours.item(), naive_gap(weights, centres), rel_tol=1e-12)
    (gradient,) = torch.autograd.grad(ours, weights)
    slope = numeric_slope(lambda w: naive_gap(w, centres), weights, (4, 2))
    assert math.isclose(gradient[4, 2], slope, abs_tol=1e-8)


def test_by_hand():
    # At the centre, at 90° and opposite: (0 + 1 + 2)/3.
    weights = torch.tensor([[3.0, 0.0], [0.0, 0.5], [-2.0, 0.0]])
    assert class_weight_gap(weights, torch.tensor([[1.0, 0.0]] * 3)).item() == 1


def without_positives(x, others):
    beyond = torch.full((len(others),), 9)
    labels = torch.arange(len(x))
    return neighbour_contrast(x, labels, own_old=x.detach(), others=others, other_labels=beyond)


ONE_CLASS = torch.zeros(4).long()


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(lambda x, o: contrast(ONE_CLASS, new=x, old=o), id="contrast, no negatives"),
        pytest.param(lambda x, o: mixed_contrast(ONE_CLASS, new=x, old=o), id="mixed, the same"),
        pytest.param(without_positives, id="neighbours, no positives"),
        pytest.param(lambda x, o: without_positives(x, o[:0]), id="neighbours, empty queue"),
        pytest.param(lambda x, o: point_to_set(x, x.detach(), torch.zeros(4)), id="at the centre"),
        pytest.param(lambda x, o: point_to_set(x, o, torch.full((4,), 2.0)), id="inside a ball"),
    ],
)
def test_a_loss_of_nothing_is_zero_and_pulls_nowhere(loss):
    x, old = case(batch=4)[0].requires_grad_(), case(batch=4, seed=1)[0]
    found = loss(x, old)
    found.backward()
    assert found.item() == 0
    assert (x.grad == 0).all()


OLD_ROWS, CENTRES = case(batch=12, seed=1)[0], unit_rows(case(classes=10, seed=1)[1])
LARGEST = torch.linspace(0.2, 1.8, 10, dtype=torch.float64)


def mixed_loss(new, rows, labels, part, own):
    return mixed_contrast(labels, new=new, old=OLD_ROWS[own], tau=0.1, ranks=part.ranks)


def cone_loss(new, rows, labels, part, own):
    largest = part.rows(LARGEST[part.range.start : part.range.stop])
    return outside_cone(new, labels, part, centres=unit_rows(rows.detach()), largest=largest)


def gap_loss(new, rows, labels, part, own):
    own_centres = part.rows(CENTRES[part.range.start : part.range.stop])
    return class_weight_gap(rows, own_centres, ranks=part.ranks) + 0 * new.sum()


@pytest.mark.parametrize(
    ("loss", "sampled"),
    [
        (mixed_loss, None),
        (cone_loss, None),
        (cone_loss, "classes of the batch"),
        (gap_loss, None),
        (gap_loss, [0, 2, 3, 7, 8]),
    ],
)
@pytest.mark.parametrize("world", [2, 3])
def test_several_ranks_find_what_one_finds(world, loss, sampled):
    x, weights, y = case(batch=12, classes=4 if loss is mixed_loss else 10)
    chosen = None if sampled is None else torch.tensor(sampled) if loss is gap_loss else y.unique()
    # A cone has no class weights, so that one rank may use all classes.
    one = over_ranks(1, loss, x, weights, y, chosen if loss is gap_loss else None)
    many = over_ranks(world, loss, x, weights, y, chosen)
    assert one[0] > 0
    if loss is gap_loss:
        assert (one[2] != 0).any(dim=1).sum() == (10 if sampled is None else 5)
    for found, expected in zip(many, one, strict=True):
        assert torch.allclose(found, expected, rtol=1e-9)
