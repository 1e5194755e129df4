import numpy as np
import pytest
import torch

from unibct.errors import UserError
from unibct.models.input import InputSpec, to_input


def test_pixels_are_normalised_with_the_channels_first():
    pixels = np.arange(2 * 3 * 4 * 1, dtype=np.uint8).reshape(2, 3, 4, 1)
    spec = InputSpec(3, 4, 1, mean=0.4, std=0.2)
    assert spec.frame == (3, 4, 1, "stretch")
    tensor = to_input(pixels, spec, torch.device("cpu"))
    assert tensor.shape == (2, 1, 3, 4)
    assert tensor.dtype == torch.float32
    want = (pixels.transpose(0, 3, 1, 2) / 255 - 0.4) / 0.2
    assert np.allclose(tensor.numpy(), want, atol=1e-6)
    mirrored = to_input(pixels[:, :, ::-1], spec, torch.device("cpu"))  # a view, not contiguous
    assert torch.equal(mirrored, tensor.flip(3))


@pytest.mark.parametrize(
    ("pixels", "given"),
    [
        (np.zeros((2, 3, 4, 1), dtype=np.float32), "float32"),
        (np.zeros((2, 3, 4, 1)), "float64"),
        (np.zeros((2, 3, 4, 1), dtype=np.int32), "int32"),
        (np.zeros((2, 3, 5, 1), dtype=np.uint8), r"uint8 of shape \(2, 3, 5, 1\)"),
        (np.zeros((2, 3, 4), dtype=np.uint8), r"uint8 of shape \(2, 3, 4\)"),
    ],
)
def test_other_pixels_are_refused(pixels, given):
    """Pixels from 0 to 1 went into the network as if they were normalised."""
    words = rf"pixels must be uint8 of shape \(batch, 3, 4, 1\), not {given}"
    with pytest.raises(UserError, match=words):
        to_input(pixels, InputSpec(3, 4, 1), torch.device("cpu"))


def test_finished_vectors_are_float32():
    spec = InputSpec(1, 4, 1, 0.0, 1.0, "vectors")
    vectors = np.ones((2, 1, 4, 1), dtype=np.float32)
    assert to_input(vectors, spec, torch.device("cpu")).shape == (2, 1, 1, 4)
    with pytest.raises(UserError, match="pixels must be float32"):
        to_input(vectors.astype(np.uint8), spec, torch.device("cpu"))


def test_each_channel_has_its_own_mean_and_deviation():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3)).astype(np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    got = to_input(pixels, InputSpec(5, 4, 3, mean, std), torch.device("cpu")).numpy()
    want = ((pixels / 255 - mean) / std).transpose(0, 3, 1, 2)
    assert np.allclose(got, want, atol=1e-6)
    half = to_input(pixels, InputSpec(5, 4, 3, mean, 0.5), torch.device("cpu")).numpy()
    assert np.allclose(half, ((pixels / 255 - mean) / 0.5).transpose(0, 3, 1, 2), atol=1e-6)


def test_equal_channels_are_written_as_one_number():
    assert InputSpec(8, 8, 3, (0.5, 0.5, 0.5), (1, 1, 1)) == InputSpec(8, 8, 3, 0.5, 1.0)
    assert InputSpec(8, 8, 3, 0).mean == 0.0


def test_a_description_gives_the_same_input():
    spec = InputSpec(64, 48, 3, (0.4, 0.5, 0.6), 0.25, "letterbox")
    assert InputSpec.of_description(spec.description()) == spec
    earlier = {"height": 32, "width": 32, "channels": 1, "mean": 0.5, "std": 0.5}
    assert InputSpec(32, 32, 1).description() == earlier | {"resize": "stretch, bilinear"}
    assert InputSpec.of_description(earlier) == InputSpec(32, 32, 1)
    with pytest.raises(UserError, match="cannot be resized by lanczos"):
        InputSpec.of_description(earlier | {"resize": "crop, lanczos"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 8, 3), "cannot have 0×8 pixels"),
        ((8, 8, 4), "4 channels; .*1 .grey. or 3"),
        ((8, 8, 3, (0.5, 0.5)), "mean has 2 numbers for images with 3 channels"),
        ((8, 8, 3, 127.5), "mean = .127.5. does not fit pixels from 0 to 1; divide by 255"),
        ((8, 8, 3, 0.5, 0.0), "deviation = .0.0. does not fit"),
        ((8, 8, 3, 0.5, 0.5, "squeeze"), "unknown fit 'squeeze'; choose one of stretch, crop"),
    ],
)
def test_impossible_inputs_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        InputSpec(*values)
