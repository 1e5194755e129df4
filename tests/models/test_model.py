import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import unibct
from unibct.errors import UserError
from unibct.models.architectures.table import ARCHITECTURES, InputSpec, build_network
from unibct.models.model import Model, load_model, save_model


def small_model(seed=0, **changes) -> Model:
    spec = InputSpec(32, 32, 1)
    network = build_network("resnet-small", spec, 16, seed=seed).eval()
    options = {"class_names": ("a", "b"), "class_weights": torch.ones(2, 16)} | changes
    return Model(network, "resnet-small", spec, 16, **options)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_its_dimension(name):
    architecture = ARCHITECTURES[name]
    spec = architecture.input
    network = build_network(name, spec, architecture.dim)
    network.train()
    out = network(torch.randn(2, spec.channels, spec.height, spec.width))
    assert out.shape == (2, architecture.dim)
    assert (spec.height, architecture.dim) == ((112, 512) if "small" not in name else (32, 128))
    out.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None or not parameter.requires_grad, name


@pytest.mark.parametrize(
    ("name", "millions"),
    # Published sizes: torchvision's ResNet less its 1000-way layer, InsightFace's IResNet.
    [
        ("resnet18", 11.689512 - 0.513 + 0.262656),
        ("resnet50", 25.557032 - 2.049 + 1.049088),
        ("iresnet18", 24.025600),
        ("iresnet50", 43.590848),
    ],
)
def test_parameter_counts_are_those_of_the_field(name, millions):
    architecture = ARCHITECTURES[name]
    network = build_network(name, architecture.input, 512)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=2e-6)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second, other = small_model(1), small_model(1), small_model(2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_fingerprint_changes_with_what_determines_the_output_only():
    model = small_model()
    fingerprint = model.fingerprint
    assert small_model(class_names=("x",), class_weights=None).fingerprint == fingerprint
    state = model.network.state_dict()
    state["bn1.num_batches_tracked"] += 1
    assert model.fingerprint == fingerprint
    state["bn1.running_mean"][0] += 1e-3
    assert model.fingerprint != fingerprint
    other_input = Model(small_model().network, "resnet-small", InputSpec(32, 32, 1, 0.4), 16)
    assert other_input.fingerprint != fingerprint


def test_round_trip(tmp_path):
    model = small_model(training={"method": "none"}, old_fingerprint="abc")
    save_model(model, tmp_path / "m")
    loaded = unibct.load_model(tmp_path / "m")
    assert loaded.fingerprint == model.fingerprint
    assert (loaded.class_names, loaded.old_fingerprint) == (("a", "b"), "abc")
    assert loaded.training == {"method": "none"}
    assert torch.equal(loaded.class_weights, model.class_weights)
    images = np.random.default_rng(0).integers(0, 255, (5, 32, 32)).astype(np.uint8)
    assert np.array_equal(model.embed(images), loaded.embed(images))
    described = json.loads((tmp_path / "m" / "model.json").read_text())
    assert described["architecture"] == "resnet-small"
    assert described["input"]["height"] == 32
    assert not list(tmp_path.glob("**/*.tmp"))


def test_embed_takes_many_forms(tmp_path):
    model = small_model()
    images = np.random.default_rng(0).integers(0, 255, (5, 32, 32)).astype(np.uint8)
    want = model.embed(images)
    assert want.shape == (5, 16)
    assert want.dtype == np.float32
    assert np.allclose(np.linalg.norm(want, axis=1), 1, atol=1e-6)
    forms = [
        images[:, :, :, None],
        images[:, None],
        list(images),
        [Image.fromarray(image) for image in images],
    ]
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    forms += [paths, [str(path) for path in paths]]
    for form in forms:
        assert np.allclose(model.embed(form, batch_size=2), want, atol=1e-5)
    tensor = model.embed(torch.from_numpy(images))
    assert isinstance(tensor, torch.Tensor)
    assert np.allclose(tensor.numpy(), want, atol=1e-6)
    colour = np.repeat(images[:, :, :, None], 3, axis=3)
    assert np.allclose(model.embed(colour), want, atol=2e-2)
    assert model.embed([np.zeros((50, 70, 3), np.uint8)]).shape == (1, 16)
    assert model.embed([]).shape == (0, 16)
    assert np.allclose(model.embed(image for image in images), want, atol=1e-5)
    with pytest.raises(UserError, match="batch_size"):
        model.embed(images, batch_size=0)
    model.network.train()
    model.embed(images)
    assert model.network.training, "embedding leaves the mode as it was"


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 32, 32)), "uint8"),
        (np.zeros((32, 32), np.uint8), "shape"),
        ("one.png", "put a single one into a list"),
        (np.zeros((32, 32, 3), np.uint8), "put a single one into a list"),
        (["missing.png"], "missing.png cannot be read"),
        ([np.zeros((32, 32))], "image 0 is float64"),
    ],
)
def test_embed_names_bad_input(images, message):
    with pytest.raises(UserError, match=message):
        small_model().embed(images)


def test_loading_names_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match="is not a model folder"):
        load_model(tmp_path)
    save_model(small_model(), tmp_path / "m")
    save_model(small_model(1), tmp_path / "n")
    weights = tmp_path / "m" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes((tmp_path / "n" / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"does not belong to model.json"):
        load_model(tmp_path / "m")
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be loaded as a model"):
        load_model(tmp_path / "m")
    description = tmp_path / "n" / "model.json"
    described = json.loads(description.read_text())
    for change, message in [
        ({"architecture": "vgg"}, "unknown architecture 'vgg'"),
        ({"format": 99}, "has format 99"),
        ({"dim": None}, "cannot be loaded"),
        ({"input": 3}, "cannot be loaded"),
    ]:
        description.write_text(json.dumps(described | change))
        with pytest.raises(UserError, match=message):
            load_model(tmp_path / "n")
    del described["classes"]
    description.write_text(json.dumps(described))
    with pytest.raises(UserError, match="lacks the entry 'classes'"):
        load_model(tmp_path / "n")
    description.write_text("{")
    with pytest.raises(UserError, match=r"model.json cannot be read"):
        load_model(tmp_path / "n")


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


def test_a_folder_never_mixes_two_models(tmp_path):
    save_model(small_model(), str(tmp_path / "m"))
    save_model(small_model(1, class_weights=None, class_names=("a",)), tmp_path / "m")
    assert load_model(tmp_path / "m").class_weights is None
    save_model(small_model(), tmp_path / "n")
    shutil.copy(tmp_path / "n" / "classifier.safetensors", tmp_path / "m")
    with pytest.raises(UserError, match=r"classifier.safetensors does not belong"):
        load_model(tmp_path / "m")
