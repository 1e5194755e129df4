"""A model embeds in full float32, and the user's own setting is as it was afterwards."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.models.cases import small_model
from unibct.data.decoding import fit
from unibct.errors import UserError
from unibct.maps.vector_map import VectorMap
from unibct.models.input import InputSpec
from unibct.models.model import Model, evaluating, full_float32

BACKENDS = torch.backends
SETTINGS = (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn, BACKENDS.mkldnn.conv)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 1), dtype=np.uint8)


def precisions():
    return [setting.fp32_precision for setting in SETTINGS]


@pytest.fixture
def tf32():
    """A user's program that allows TF32 for matrix products; torch allows it for convolutions."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield precisions()
    torch.set_float32_matmul_precision(precision)


class Watching(nn.Module):
    """A network that remembers the precision in which it ran."""

    def __init__(self, network):
        super().__init__()
        self.network, self.seen = network, []

    def forward(self, images):
        self.seen.append(precisions())
        return self.network(images)


def test_both_ways_to_embed_run_in_full_float32(tf32):
    watching = Watching(small_model().network)
    model = replace(small_model(), network=watching)
    model.embed(IMAGES)
    model.raw_embeddings(IMAGES)
    assert watching.seen == [["ieee"] * 4] * 3
    assert "tf32" in tf32
    assert precisions() == tf32
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cuda.matmul.allow_tf32  # the older name of the setting agrees


def test_an_error_leaves_the_setting_as_it_was(tf32):
    model = replace(small_model(), network=nn.Conv2d(3, 1, 1))  # takes other images
    with pytest.raises(RuntimeError):
        model.embed(IMAGES)
    assert precisions() == tf32


def test_blocks_of_several_threads_overlap(tf32):
    inside, leave, found = threading.Event(), threading.Event(), []

    def outer():
        with full_float32():
            inside.set()
            leave.wait(10)
            found.append(precisions())

    thread = threading.Thread(target=outer)
    thread.start()
    inside.wait(10)
    with full_float32():
        found.append(precisions())
    found.append(precisions())  # the other block is still open
    leave.set()
    thread.join()
    assert found == [["ieee"] * 4] * 3
    assert precisions() == tf32


def test_fingerprint_changes_with_what_determines_the_output_only():
    model = small_model()
    fingerprint = model.fingerprint
    assert small_model(seed=1).fingerprint != fingerprint
    assert small_model(class_names=("x",), class_weights=None).fingerprint == fingerprint
    state = model.network.state_dict()
    state["bn1.num_batches_tracked"] += 1
    assert model.fingerprint == fingerprint
    state["bn1.running_mean"][0] += 1e-3
    assert model.fingerprint != fingerprint
    for other in (InputSpec(32, 32, 1, 0.4), InputSpec(32, 32, 1, fit="crop")):
        assert replace(small_model(), input=other).fingerprint != fingerprint


def test_embed_takes_many_forms(tmp_path):
    model = small_model()
    images = np.random.default_rng(0).integers(0, 255, (5, 32, 32)).astype(np.uint8)
    want = model.embed(images)
    assert want.shape == (5, 16)
    assert want.dtype == np.float32
    assert np.allclose(np.linalg.norm(want, axis=1), 1, atol=1e-6)
    pictures = [Image.fromarray(image) for image in images]
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, picture in zip(paths, pictures, strict=True):
        picture.save(path)
    arrays = [images[:, :, :, None], images[:, None], list(images)]
    for form in (*arrays, pictures, paths, [str(path) for path in paths]):
        assert np.allclose(model.embed(form, batch_size=2), want, atol=1e-5)
    tensor = model.embed(torch.from_numpy(images))
    assert isinstance(tensor, torch.Tensor)
    assert np.allclose(tensor.numpy(), want, atol=1e-6)
    colour = np.repeat(images[:, :, :, None], 3, axis=3)
    assert np.allclose(model.embed(colour), want, atol=2e-2)
    assert model.embed([np.zeros((50, 70, 3), np.uint8)]).shape == (1, 16)
    assert model.embed([]).shape == (0, 16)
    assert np.allclose(model.embed(image for image in images), want, atol=1e-5)
    for batch_size in (0, 1.5, None):
        with pytest.raises(UserError, match="batch_size must be a whole number, at least 1, not"):
            model.embed(images, batch_size=batch_size)
    model.network.train()
    model.embed(images)
    assert model.network.training, "embedding leaves the mode as it was"


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 32, 32)), "uint8"),
        (np.zeros((32, 32), np.uint8), "shape"),
        (5, "an array or a sequence of images, not int"),
        (None, "an array or a sequence of images, not NoneType"),
        ("one.png", "put a single one into a list"),
        (np.zeros((32, 32, 3), np.uint8), "put a single one into a list"),
        (["missing.png"], "missing.png cannot be read"),
        ([np.zeros((32, 32))], "image 0 is float64"),
        (np.zeros((2, 0, 32), np.uint8), r"must be uint8 .* with at least one pixel, .* \(0, 32\)"),
    ],
)
def test_embed_names_bad_input(images, message):
    with pytest.raises(UserError, match=message):
        small_model().embed(images)


def test_a_file_and_its_pillow_image_are_the_same(tmp_path):
    rng = np.random.default_rng(0)
    model = small_model()
    grey = Image.fromarray(rng.integers(0, 255, (40, 32)).astype(np.uint8))
    alpha = Image.merge("RGBA", [grey, grey, grey, grey.rotate(180)])
    exif = Image.Exif()
    exif[0x0112] = 6
    grey.save(tmp_path / "turned.png", exif=exif)
    alpha.save(tmp_path / "alpha.png")
    Image.fromarray(rng.integers(0, 65535, (32, 32)).astype(np.uint16)).save(tmp_path / "wide.png")
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as image:
            assert np.array_equal(model.embed([image]), model.embed([path])), path


def test_raw_embeddings_add_the_mirrored_image_and_keep_their_length():
    model = small_model()
    pixels = np.random.default_rng(0).integers(0, 255, (3, 32, 32, 1)).astype(np.uint8)
    plain = model.raw_embeddings(pixels, flip_test=False)
    turned = model.raw_embeddings(pixels[:, :, ::-1], flip_test=False)
    assert np.allclose(model.raw_embeddings(pixels), plain + turned, atol=1e-5)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert not np.allclose(lengths, 1, atol=0.01)
    assert np.allclose(plain / lengths, model.embed_pixels(pixels), atol=1e-6)


@pytest.mark.parametrize("how", ["stretch", "crop", "letterbox"])
def test_embed_fits_the_images_as_the_input_says(how):
    model = replace(small_model(), input=InputSpec(32, 32, 1, fit=how))
    wide = np.random.default_rng(0).integers(0, 255, (40, 90)).astype(np.uint8)
    want = model.embed_pixels(fit(wide, 32, 32, 1, how)[None].copy())
    for form in (wide, Image.fromarray(wide)):
        assert np.allclose(model.embed([form]), want, atol=1e-5)


def test_a_network_without_weights_is_on_the_cpu():
    spec = InputSpec(2, 2, 1)
    model = Model(torch.nn.Flatten(), "python:x", spec, 4)
    assert model.device == torch.device("cpu")
    assert model.embed(np.full((1, 2, 2), 255, np.uint8)).tolist() == [[0.5] * 4]


def test_evaluation_mode_ends_with_the_block():
    network = small_model().network.train()
    with pytest.raises(KeyError), evaluating(network):
        assert not network.training
        raise KeyError
    assert network.training


@pytest.mark.parametrize("change", ["fused", "copied", "inference", "moved", "map"])
def test_weights_are_hashed_once_and_again_when_they_have_changed(monkeypatch, change):
    layers = [(torch.eye(16), None)]
    model = replace(small_model(), vector_map=VectorMap("linear", layers))
    hashed, digest = [], Model._digest
    monkeypatch.setattr(Model, "_digest", lambda self: hashed.append(1) or digest(self))
    first = model.fingerprint
    assert (model.fingerprint, model.name[-8:], len(hashed)) == (first, first[:8], 1)
    model.embed(np.zeros((2, 32, 32), dtype=np.uint8))
    assert (model.fingerprint, len(hashed)) == (first, 1), "embedding changes nothing"
    weight = model.network.fc.weight
    if change == "fused":  # it does not count versions
        weight.grad = torch.ones_like(weight)
        torch.optim.AdamW([weight], fused=True).step()
    elif change == "copied":
        model.network.load_state_dict(small_model(seed=1).network.state_dict())
    elif change == "inference":
        with torch.inference_mode():
            weight.mul_(2)
    elif change == "moved":
        weight.data = weight.data * 2
    else:
        layers[0][0].mul_(2)
    assert model.fingerprint == digest(model)[:32] != first
    assert len(hashed) == 2


def test_the_fingerprint_stays_what_it_was():
    network = torch.nn.Linear(2, 3)
    with torch.no_grad():
        network.weight.copy_(torch.arange(6.0).view(3, 2))
        network.bias.fill_(0.5)
    model = Model(network, "resnet-small", InputSpec(32, 32, 1), 3)
    assert model.fingerprint == "000f5d9ba3af6ac09fbfb2885c62b711"
