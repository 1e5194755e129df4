import subprocess
import sys

import pytest
import torch

from tests.training.runs import RECIPE
from unibct.models.architectures import ARCHITECTURES, build_network
from unibct.models.input import InputSpec
from unibct.models.old_space import add_projection
from unibct.training.optimizer import (
    SGD,
    AdamW,
    LossScale,
    clip_gradients,
    gradients_of,
    is_count,
    kept_tensors,
    make_optimizer,
    restore_kept,
    set_rate,
)


def weights_with_gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (7, 2))]
    for weight in weights[: 3 - seed % 2]:  # the last may have none
        weight.grad = torch.randn(weight.shape, generator=generator)
    return weights


@pytest.mark.parametrize("largest", [0.1, 2.0, 1e6])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_clips_as_torch_does(largest, seed):
    ours, theirs = weights_with_gradients(seed), weights_with_gradients(seed)
    clip_gradients(ours[1:], ours[:1], largest)
    torch.nn.utils.clip_grad_norm_(theirs, largest)
    for one, other in zip(gradients_of(ours), gradients_of(theirs), strict=True):
        assert torch.allclose(one, other, rtol=1e-6)


def test_the_classes_of_other_ranks_count():
    class TwoRanks:
        def summed(self, squares):
            return squares + 9.0  # the other rank's

    shared, own = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    shared.grad, own.grad = torch.tensor([4.0]), torch.tensor([12.0])
    clip_gradients([shared], [own], 1.0, TwoRanks())
    assert float(own.grad) == pytest.approx(12 / 13, abs=1e-5)  # √(16 + 144 + 9)


def test_the_loss_scale_falls_at_once_and_rises_slowly():
    scale = LossScale(8.0)
    scale.update(finite=False)
    assert (scale.value, scale.good_steps) == (4.0, 0)
    for _ in range(2000):
        scale.update(finite=True)
    assert (scale.value, scale.good_steps) == (8.0, 0)
    for _ in range(9):
        scale.update(finite=False)
    assert scale.value == 1.0


@pytest.mark.parametrize("value", [1.0, 2.0, 2.0**16, 2.0**24])
def test_unscaled_gradients_equal_a_division_to_the_bit(value):
    generator = torch.Generator().manual_seed(0)
    tiny = torch.tensor([1e-45, -3e-45, 1.2e-38, -5e-39])  # rounding among subnormal numbers
    gradients = [torch.randn(5, 3, generator=generator), torch.tensor(3e38), tiny]
    gradients.append(torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last))
    expected = [gradient / value for gradient in gradients]
    assert LossScale(value).unscale(gradients)
    for gradient, quotient in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, quotient)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_an_overflow_in_any_gradient_is_seen(bad):
    for place in range(3):
        gradients = [torch.ones(4, 4) for _ in range(3)]
        gradients[place][2, 1] = bad
        assert not LossScale(8.0).unscale(gradients)


ADAM = RECIPE.updated(optimizer="adamw", lr=1e-3, weight_decay=0.01)


def network():
    return build_network("resnet-small", ARCHITECTURES["resnet-small"].input, 16)


def rates_of(net, classes, scheduled):
    """The rate of each parameter, by its id, where the layers before the head have a tenth."""
    optimizer = make_optimizer(RECIPE.updated(backbone_lr=0.1), net, classes)
    set_rate(optimizer, scheduled)
    return {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}


def test_all_layers_but_the_head_have_their_own_rate():
    net, classes = network(), torch.nn.Parameter(torch.zeros(3, 16))
    add_projection(net, 16, 8)
    head, rates = ("fc.", "old_space."), rates_of(net, classes, 2.0)
    assert len(rates) == len(list(net.parameters())) + 1
    for name, parameter in net.named_parameters():
        assert rates[id(parameter)] == pytest.approx(2.0 if name.startswith(head) else 0.2), name
    assert rates[id(classes)] == 2.0
    assert len(make_optimizer(RECIPE, net, classes).param_groups) == 1


@pytest.mark.parametrize(
    ("name", "head"), [("projection", "layers."), ("projection-mlp", "layers.3.")]
)
def test_the_last_layer_of_a_network_for_vectors_is_its_head(name, head):
    net = build_network(name, InputSpec(1, 12, 1), 8)
    rates = rates_of(net, None, 1.0)
    for parameter_name, parameter in net.named_parameters():
        expected = 1.0 if parameter_name.startswith(head) else 0.1
        assert rates[id(parameter)] == pytest.approx(expected), parameter_name


@pytest.mark.parametrize("recipe", [RECIPE, ADAM])
def test_what_it_keeps_is_put_back(recipe):
    def trained(steps, kept=None):
        weight = torch.nn.Parameter(torch.arange(3.0))
        optimizer = make_optimizer(recipe, torch.nn.Identity(), weight)
        if kept is not None:
            weight.data.copy_(kept.pop("weight"))
            restore_kept(optimizer, {"w": weight}, kept)
        for _ in range(steps):
            optimizer.zero_grad()
            (weight.square().sum() * 3).backward()
            optimizer.step()
        return {"weight": weight.data.clone(), **kept_tensors(optimizer, {"w": weight})}

    half = trained(2)
    counts = [name for name in half if is_count(name)]
    assert counts == (["updates.w"] if recipe is ADAM else [])
    assert torch.equal(trained(2, half)["weight"], trained(4)["weight"])


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_without_the_compiler_every_update_is_torch_s_to_the_bit(name):
    start, gradients = torch.randn(5, 3), torch.randn(4, 5, 3)
    found = []
    for kind in ({"SGD": SGD, "AdamW": AdamW}[name], getattr(torch.optim, name)):
        parameter = torch.nn.Parameter(start.clone())
        updates = kind([parameter], lr=0.1, weight_decay=0.01)
        for gradient in gradients:
            updates.zero_grad()
            (parameter * gradient).sum().backward()
            updates.step()
        assert parameter.requires_grad
        found.append((parameter.detach(), updates.state_dict()["param_groups"]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.slow
def test_a_step_does_not_import_the_compiler():
    code = (
        "import sys, torch\n"
        "from unibct.training.optimizer import SGD, AdamW\n"
        "for kind in (SGD, AdamW):\n"
        "    updates = kind([torch.nn.Parameter(torch.ones(2))], lr=0.1)\n"
        "    updates.zero_grad(); updates.step(); updates.load_state_dict(updates.state_dict())\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
