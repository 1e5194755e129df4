import pytest
import torch
from torch import nn

from tests.distributed.twins import Twins
from unibct.distributed import gradients
from unibct.distributed.gradients import AveragedGradients, SyncedBatchNorm, synced
from unibct.distributed.ranks import ALONE


class Finished:
    def wait(self):
        pass


@pytest.fixture
def sent(monkeypatch):
    """The sizes of what is sent; the other rank's gradients are zero."""
    sizes = []

    def all_reduce(tensor, async_op):
        assert async_op
        sizes.append(tensor.numel())
        return Finished()

    monkeypatch.setattr(gradients.dist, "all_reduce", all_reduce)
    return sizes


def step(model, averaged):
    model.zero_grad()
    model[1](model[0](torch.ones(2, 3))).sum().backward()
    averaged.finish()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 6))


def test_gradients_are_averaged_in_fixed_buckets_from_the_last_layer(sent):
    plain, ours = model(), model()
    want = step(plain, AveragedGradients(plain.parameters(), ALONE))
    assert sent == []
    averaged = AveragedGradients(ours.parameters(), Twins(), bucket_bytes=25 * 4)
    for _ in range(2):
        averages = step(ours, averaged)
        # Biases and weights of 6 and 30, 5 and 20, 4 and 12 numbers; at most 25 in a bucket. Each
        # of them has one number more, which says whether there is a gradient.
        assert sent == [7, 31, 27, 18]
        sent.clear()
        for gradient, expected in zip(averages, want, strict=True):
            if expected is None:
                assert gradient is None, "the loss does not use this parameter"
            else:
                assert torch.equal(gradient, expected / 2)


def test_a_rank_that_skips_a_layer_moves_it_as_the_others_do(monkeypatch):
    """Layers that are left out at random may be left out on one rank only."""

    def all_reduce(tensor, async_op):
        tensor[:-2] += 6.0  # the other rank has gradients of 6 for weight and bias, and uses both
        tensor[-2:] += 1.0
        return Finished()

    monkeypatch.setattr(gradients.dist, "all_reduce", all_reduce)
    layer = nn.Linear(2, 1)
    averaged = AveragedGradients(layer.parameters(), Twins())
    averaged.finish()
    for parameter in layer.parameters():
        assert torch.equal(parameter.grad, torch.full_like(parameter, 3.0))


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Flatten())
        return nn.Sequential(layers, nn.Linear(12, 4), nn.BatchNorm1d(4)).double()


def test_one_process_keeps_torch_s_own():
    model = network()
    assert synced(model, ALONE) is model
    assert not any(isinstance(module, SyncedBatchNorm) for module in model.modules())


def test_two_equal_batches_are_normalised_like_one_of_twice_the_size():
    images = torch.randn(5, 2, 2, 2, generator=torch.Generator().manual_seed(1)).double()
    target = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).double()
    both, one = network(), synced(network(), Twins())
    assert sum(isinstance(module, SyncedBatchNorm) for module in one.modules()) == 2
    twice = images.repeat(2, 1, 1, 1).requires_grad_()
    own = images.clone().requires_grad_()
    want, ours = both(twice), one(own)
    assert torch.allclose(ours, want[:5])
    ((want - target.repeat(2, 1)) ** 2).sum().backward()
    ((ours - target) ** 2).sum().backward()
    assert torch.allclose(own.grad, twice.grad[:5])
    for name, parameter in one.named_parameters():
        assert torch.allclose(2 * parameter.grad, both.get_parameter(name).grad, atol=1e-10), name
    for name, buffer in one.named_buffers():
        assert torch.allclose(buffer, both.get_buffer(name)), name
    assert torch.allclose(one.eval()(images), both.eval()(images))


@pytest.mark.parametrize(
    "options", [{"affine": False}, {"momentum": None}, {"track_running_stats": False}]
)
def test_what_torch_s_own_may_leave_out(options):
    generator = torch.Generator().manual_seed(1)
    both, one = (nn.Sequential(nn.BatchNorm2d(2, **options), nn.PReLU()).double() for _ in "12")
    synced(one, Twins())
    for _ in range(3):
        images = torch.randn(5, 2, 2, 2, generator=generator).double()
        twice, own = images.repeat(2, 1, 1, 1).requires_grad_(), images.clone().requires_grad_()
        want, ours = both(twice), one(own)
        assert torch.allclose(ours, want[:5])
        want.pow(3).sum().backward()
        ours.pow(3).sum().backward()
        assert torch.allclose(own.grad, twice.grad[:5])
    assert list(one.state_dict()) == list(both.state_dict())
    for name, buffer in one.named_buffers():
        assert torch.allclose(buffer, both.get_buffer(name)), name
    assert torch.allclose(one.eval()(images), both.eval()(images))


class ActivatedNorm(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: it goes on with drop-out and an activation."""

    def __init__(self, width):
        super().__init__(width)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


def test_an_activation_inside_the_layer_is_kept():
    images = torch.randn(5, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    both, one = nn.Sequential(ActivatedNorm(2)), synced(nn.Sequential(ActivatedNorm(2)), Twins())
    assert isinstance(one[0], SyncedBatchNorm)
    want, ours = both(images.repeat(2, 1, 1, 1))[:5], one(images)
    assert (want == 0).any()
    assert torch.allclose(ours, want, atol=1e-6)
    assert torch.allclose(one.eval()(images), both.eval()(images), atol=1e-6)
    assert list(one.state_dict()) == list(both.state_dict())
