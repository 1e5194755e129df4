import pytest
import torch
from torch import nn

from tests.distributed.twins import Twins
from unibct.distributed import gradients
from unibct.distributed.gradients import AveragedGradients
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
