import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from tests.distributed.thread_ranks import run_ranks
from tests.methods.cases import SETTINGS, batch, knowledge
from unibct.distributed.ranks import ClassesInUse
from unibct.errors import UserError
from unibct.methods import find_method
from unibct.methods.advbct import AdvBct, ReleasedAdvBct, reversed_gradient


def naive_advbct(parameters, step):
    """The discriminator's loss and the point-to-set loss, without a reversed gradient."""
    first, first_bias, second, second_bias, place = parameters
    old, new = knowledge(), F.normalize(step.embeddings, dim=1)

    def logit(vectors):
        return (F.relu(vectors @ first.T + first_bias) @ second.T + second_bias)[:, 0]

    is_new, is_old = torch.sigmoid(-logit(new)), torch.sigmoid(logit(old.embeddings[step.rows]))
    centres = F.normalize(torch.stack([old.embeddings[old.labels == c].mean(0) for c in range(4)]))
    own = torch.stack(
        [(old.embeddings[old.labels == c] - centres[c]).norm(dim=1).max() for c in range(4)]
    )
    radius = own + torch.sigmoid(place) * (own.mean() - own)
    beyond = (new - centres[step.labels]).norm(dim=1) - radius[step.labels]
    return -torch.cat([is_new, is_old]).log().mean(), beyond[beyond > 0].mean()


def advbct(place=(0.0, 0.0, 0.0, 0.0)):
    method = find_method("advbct").make(knowledge(), SETTINGS)
    method.parameters()[-1].data = torch.tensor(place)
    return method


@pytest.mark.parametrize("place", [0.0, -30.0, 30.0, 1.5])
def test_advbct_is_its_formula_with_radii_between_the_class_s_own_and_the_mean(place):
    method, step = advbct((place,) * 4), batch(progress=0.4)
    adversarial, outside = naive_advbct(method.parameters(), step)
    assert torch.allclose(method.loss(step), adversarial + outside, rtol=1e-5)


def test_a_reversed_gradient():
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    y = reversed_gradient(x, 0.25)
    assert torch.equal(y, x)
    (y * torch.tensor([[3.0, 8.0]])).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[-0.75, -2.0]]))


LABELS = torch.tensor([0] * 9 + [1] * 4 + [2] + [3] * 10)  # class 2 has a single image


def old_knowledge():
    """Old embeddings of classes of unequal size, one of them with an outlier."""
    old = knowledge(labels=LABELS)
    embeddings = old.embeddings.clone()
    embeddings[:9] = F.normalize(embeddings[0] + 0.05 * embeddings[1:10], dim=1)
    embeddings[8] = F.normalize(-embeddings[0] + 0.3 * embeddings[1], dim=0)
    return dataclasses.replace(old, embeddings=embeddings)


def step_of(old, **changes):
    plain = batch((0, 3, 8, 10, 13, 15, 20, 23), **changes)
    return dataclasses.replace(plain, labels=old.labels[plain.rows])


def naive_balls(old):
    """Raw centres, and the largest distance within 1.5 interquartile ranges."""
    centres, radii = [], []
    for c in range(4):
        members = old.embeddings[old.labels == c]
        centres.append(members.mean(dim=0))
        distances = sorted((members - centres[c]).norm(dim=1).tolist())
        n = len(distances)
        if n >= 4:
            low, high = distances[int(n / 4)], distances[int(3 * n / 4)]
            distances = [d for d in distances if d <= high + 1.5 * (high - low)]
        radii.append(distances[-1] if n > 1 else None)
    return centres, radii


def naive_discriminator(parameters, vectors):
    first, first_bias, scale, shift, second, second_bias = parameters
    hidden = vectors @ first.T + first_bias
    variance = hidden.var(dim=0, correction=0)
    hidden = (hidden - hidden.mean(dim=0)) / (variance + 1e-5).sqrt() * scale + shift
    return torch.softmax(F.relu(hidden) @ second.T + second_bias, dim=1)


def naive_losses(parameters, old, step):
    """The discriminator's loss and the point-to-set loss, without weight or reversed gradient."""
    *weights, place = parameters
    new = F.normalize(step.embeddings, dim=1)
    is_new = naive_discriminator(weights, new)[:, 0]
    is_old = naive_discriminator(weights, old.embeddings[step.rows])[:, 1]
    centres, radii = naive_balls(old)
    outside = []
    for z, c in zip(new, step.labels.tolist(), strict=True):
        if radii[c] is not None:
            radius = radii[c] + torch.sigmoid(place[c]) * (1 - radii[c])
            distance = (z - centres[c]).norm()
            if distance > radius:
                outside.append(distance - radius)
    return -is_new.log().mean() - is_old.log().mean(), torch.stack(outside).mean()


@pytest.mark.parametrize("progress", [0.3, 1.0])  # at the end only the balls are left
def test_released_advbct_is_its_formula(progress):
    old = old_knowledge()
    assert naive_balls(old)[1][0] < 0.5  # without the outlier
    method = find_method("advbct@released=true").make(old, SETTINGS)
    step = step_of(old, progress=progress)
    adversarial, outside = naive_losses(method.parameters(), old, step)
    wanted = (1 - progress) * adversarial + outside
    assert torch.allclose(method.loss(step), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("released", "progress", "weight"),
    [(False, 0.0, 1.0), (False, 0.1, 1.0), (False, 1.0, 1.0), (True, 0.3, 0.7)],
)
def test_the_gradient_of_the_network_is_reversed_but_not_that_of_what_is_learnt(
    released, progress, weight
):
    if released:
        old = old_knowledge()
        method, step = ReleasedAdvBct(old, SETTINGS), step_of(old, progress=progress)
        adversarial, outside = naive_losses(method.parameters(), old, step)
    else:
        method, step = advbct((0.3, -0.3, 1.0, 0.0)), batch(progress=progress)
        adversarial, outside = naive_advbct(method.parameters(), step)
    parameters = method.parameters()
    (to_deceive,) = torch.autograd.grad(adversarial, step.embeddings, retain_graph=True)
    (to_centre,) = torch.autograd.grad(outside, step.embeddings, retain_graph=True)
    learnt = torch.autograd.grad(weight * adversarial + outside, parameters)
    assert float(to_deceive.abs().max()) > 1e-3
    method.loss(step).backward()
    strength = weight * math.tanh(5 * progress)  # = 2/(1 + exp(−10·progress)) − 1
    want = to_centre - strength * to_deceive
    assert torch.allclose(step.embeddings.grad, want, atol=1e-6)
    for parameter, gradient in zip(parameters, learnt, strict=True):
        assert released or float(parameter.grad.abs().sum()) > 0
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)
    if released:
        assert parameters[-1].grad[2] == 0  # the class of one image has no ball
        assert torch.count_nonzero(parameters[-1].grad) >= 2


def test_the_released_constants():
    old = old_knowledge()
    method = ReleasedAdvBct(old, SETTINGS)
    shapes = [tuple(parameter.shape) for parameter in method.parameters()]
    assert shapes == [(100, 8), (100,), (100,), (100,), (2, 100), (2,), (4,)]
    place = method.parameters()[-1]
    assert (place.abs() <= 1).all()
    assert len(place.unique()) == 4
    again = ReleasedAdvBct(old, SETTINGS)
    assert torch.equal(again.parameters()[-1], place)


def test_a_batch_of_one_image_cannot_be_normalised():
    old = old_knowledge()
    step = dataclasses.replace(batch((3,)), labels=old.labels[[3]])
    with pytest.raises(UserError, match="normalises over the batch, which has one image only"):
        ReleasedAdvBct(old, SETTINGS).loss(step)


@pytest.mark.parametrize("kind", [AdvBct, ReleasedAdvBct])
def test_what_is_learnt_survives_a_checkpoint(kind):
    old = old_knowledge()
    learnt, fresh, step = kind(old, SETTINGS), kind(old, SETTINGS), step_of(old, progress=0.5)
    learnt.loss(step).backward()
    for parameter in learnt.parameters():
        parameter.data -= parameter.grad
    with torch.no_grad():
        wanted, before = learnt.loss(step), fresh.loss(step)
        assert not torch.allclose(wanted, before)
        fresh.load_state({})
        assert torch.equal(fresh.loss(step), before)
        fresh.load_state({k: v.clone() for k, v in learnt.state().items()})
        assert torch.equal(fresh.loss(step), wanted)


@pytest.mark.parametrize("world", [2, 4])
def test_several_ranks_find_what_one_finds(world):
    old = old_knowledge()
    step = step_of(old, progress=0.3)
    one = ReleasedAdvBct(old, SETTINGS)
    start = {k: v.clone() for k, v in one.state().items()}
    loss = one.loss(step)
    loss.backward()

    def of_rank(ranks):
        own = ranks.batch_slice(len(step.rows))
        method = ReleasedAdvBct(dataclasses.replace(old, ranks=ranks), SETTINGS)
        method.load_state(start)  # threads share torch's generator
        new = step.embeddings.detach()[own].requires_grad_()
        rows = {"labels": step.labels[own], "rows": step.rows[own]}
        shared = ClassesInUse(4, ranks)
        part_of_step = dataclasses.replace(step, embeddings=new, part=shared, **rows)
        found = method.loss(part_of_step)
        found.backward()
        return found.detach(), new.grad, [parameter.grad for parameter in method.parameters()]

    losses, gradients, learnt = zip(*run_ranks(world, of_rank), strict=True)
    assert torch.allclose(sum(losses) / world, loss.detach(), rtol=1e-5)
    assert torch.allclose(torch.cat(gradients) / world, step.embeddings.grad, atol=1e-6)
    for parameter, *found in zip(one.parameters(), *learnt, strict=True):
        assert torch.allclose(sum(found) / world, parameter.grad, atol=1e-6)
