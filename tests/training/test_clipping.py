import pytest
import torch

from unibct.training.clipping import clip_gradients, gradients_of


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
