import pytest
import torch

from unibct.training.loss_scale import LossScale


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
