import math

import pytest
import torch
import torch.nn.functional as F

from tests.methods.cases import SETTINGS, batch, knowledge
from unibct.methods.advbct import reversed_gradient
from unibct.methods.table import find_method


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


@pytest.mark.parametrize("progress", [0.0, 0.1, 1.0])
def test_advbct_reverses_the_gradient_of_the_network_but_not_of_the_discriminator(progress):
    method, step = advbct((0.3, -0.3, 1.0, 0.0)), batch(progress=progress)
    parameters = method.parameters()
    adversarial, outside = naive_advbct(parameters, step)
    (to_deceive,) = torch.autograd.grad(adversarial, step.embeddings, retain_graph=True)
    (to_centre,) = torch.autograd.grad(outside, step.embeddings, retain_graph=True)
    learnt = torch.autograd.grad(adversarial + outside, parameters)
    assert float(to_deceive.abs().max()) > 1e-3
    method.loss(step).backward()
    strength = math.tanh(5 * progress)  # = 2/(1 + exp(−10·progress)) − 1
    want = to_centre - strength * to_deceive
    assert torch.allclose(step.embeddings.grad, want, atol=1e-6)
    for parameter, gradient in zip(parameters, learnt, strict=True):
        assert float(parameter.grad.abs().sum()) > 0
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)


def test_a_reversed_gradient():
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    y = reversed_gradient(x, 0.25)
    assert torch.equal(y, x)
    (y * torch.tensor([[3.0, 8.0]])).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[-0.75, -2.0]]))


def test_what_advbct_has_learnt_survives_a_checkpoint():
    learnt, fresh, step = advbct(), advbct(), batch(progress=0.5)
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
