import numpy as np
import torch

from unibct.models.input import InputSpec, to_input


def test_pixels_are_normalised_with_the_channels_first():
    pixels = np.arange(2 * 3 * 4 * 1, dtype=np.uint8).reshape(2, 3, 4, 1)
    spec = InputSpec(3, 4, 1, mean=0.4, std=0.2)
    assert spec.size == (3, 4, 1)
    tensor = to_input(pixels, spec, torch.device("cpu"))
    assert tensor.shape == (2, 1, 3, 4)
    assert tensor.dtype == torch.float32
    want = (pixels.transpose(0, 3, 1, 2) / 255 - 0.4) / 0.2
    assert np.allclose(tensor.numpy(), want, atol=1e-6)
    mirrored = to_input(pixels[:, :, ::-1], spec, torch.device("cpu"))  # a view, not contiguous
    assert torch.equal(mirrored, tensor.flip(3))
