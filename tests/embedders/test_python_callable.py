import re

import numpy as np
import pytest
import torch

from tests.embedders.networks import INPUT_SIZE, flatten
from unibct.arrays import normalized
from unibct.embedders import Opener, open_embedder
from unibct.embedders.python_callable import BlackBox, distance_share
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.files import CACHE_VARIABLE
from unibct.losses import arcface
from unibct.models.architectures import build_network
from unibct.models.input import InputSpec, to_input


class Sides(BlackBox):
    """Looks at the left and the right column only."""

    name, dim, fingerprint, input = "sides", 2, "x", InputSpec(2, 3, 1)

    def outputs(self, pixels):
        return pixels[:, 0, [0, -1], 0].astype(np.float32)


PIXELS = np.array([[[3, 0, 4]] * 2], dtype=np.uint8)[..., None]


def test_vectors_are_normalised_and_views_are_summed():
    box = Sides()
    assert np.allclose(box.embed_pixels(PIXELS), [[0.6, 0.8]])
    assert box.raw_embeddings(PIXELS).tolist() == [[7, 7]]
    assert box.raw_embeddings(PIXELS, flip_test=False).tolist() == [[3, 4]]
    assert box.to("cpu") is box


def test_a_vector_of_zeros_is_named_by_its_image(glyph_classes):
    images = glyph_classes.select(range(3))
    box = Sides()
    box.outputs = lambda pixels: np.zeros((len(pixels), 2), dtype=np.float32)
    with pytest.raises(UserError, match=re.escape(f"zeros for {images.ids[0]}")):
        embed(box, images)


# A callable without a fingerprint is known again on another device, and no other one is.

REFERENCE = "python:tests.embedders.test_python_callable:searched?size=32&channels=1"
SPEC, CPU = InputSpec(32, 32, 1), torch.device("cpu")


def vectors_of(network, images):
    with torch.inference_mode():
        return network.eval()(to_input(images, SPEC, CPU)).numpy()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def runs(monkeypatch):
    """Open the embedder as another network, with noise of the size of TF32, or in another place."""

    def opened(network, noise=0.0, seed=0, probes=None):
        def searched(images):
            vectors = vectors_of(network, images)
            size = noise * np.linalg.norm(vectors, axis=1, keepdims=True)
            drawn = np.random.default_rng(seed).standard_normal(vectors.shape)
            return vectors + size * drawn / np.sqrt(vectors.shape[1])

        monkeypatch.setattr(f"{__name__}.searched", searched, raising=False)
        return Opener(probes=probes).open(REFERENCE)

    return opened


def network_of(seed):
    return build_network("resnet-small", SPEC, 128, seed=seed)


def tuned(network, steps, rate):
    """The same network, trained on for some steps; the running means stay as they were."""
    again = network_of(0)
    again.load_state_dict(network.state_dict())
    for module in again.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0
    rng = np.random.default_rng(0)
    images = to_input(rng.integers(0, 256, (64, 32, 32, 1), dtype=np.uint8), SPEC, CPU)
    labels = torch.arange(64) % 8
    weights = torch.randn(8, 128, generator=torch.Generator().manual_seed(0)) * 0.01
    optimizer = torch.optim.SGD(again.parameters(), lr=rate, momentum=0.9)
    again.train()
    for _ in range(steps):
        optimizer.zero_grad()
        arcface(again(images), weights, labels).backward()
        optimizer.step()
    return again


def test_noise_of_another_device_leaves_the_fingerprint(runs):
    network = network_of(0)
    first = runs(network)
    others = [runs(network, noise=1e-3, seed=seed) for seed in range(5)]
    digests = {other.probe.fingerprint for other in others}
    assert len(digests | {first.fingerprint}) > 1, "the digests alone would tell them apart"
    assert {other.fingerprint for other in others} == {first.fingerprint}
    assert runs(network).fingerprint == first.fingerprint


def test_whichever_device_comes_first_names_it(runs):
    network = network_of(0)
    first = runs(network, noise=1e-3, seed=3)
    assert runs(network).fingerprint == first.fingerprint == first.probe.fingerprint


def test_another_model_under_the_same_name_is_another(runs):
    network = network_of(0)
    others = (network_of(1), tuned(network, 10, 1e-3), tuned(network, 30, 1e-2))
    fingerprints = [runs(one).fingerprint for one in (network, *others)]
    assert len(set(fingerprints)) == 4
    assert runs(network, noise=1e-3).fingerprint == fingerprints[0], "the nearest one is meant"


def test_models_whose_vectors_lie_in_a_cone_are_told_apart_too(runs):
    """After a short training all vectors are nearly the same: cosines alone say little."""

    class Cone(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, images):
            return torch.nn.functional.normalize(self.network(images)) * 0.01 + 1 / 128**0.5

    first, other = runs(Cone(network_of(0))), runs(Cone(network_of(1)))
    assert (first.probe.vectors * other.probe.vectors).sum(axis=1).min() > 0.999
    assert first.fingerprint != other.fingerprint


def test_the_distance_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    rows = normalized(rng.standard_normal((5, 7))).astype(np.float64)
    moved = normalized(rows + 0.1 * rng.standard_normal((5, 7)))
    same = np.mean([1 - rows[i] @ moved[i] for i in range(5)])
    different = np.mean([1 - rows[i] @ rows[j] for i in range(5) for j in range(5) if i != j])
    assert distance_share(rows, moved) == pytest.approx(same / different, rel=1e-9)
    assert distance_share(rows, rows) == 0
    assert distance_share(rows, rows[:, :6]) == np.inf
    constant = np.ones((5, 7)) / 7**0.5
    assert distance_share(constant, constant) == 0
    assert distance_share(constant, rows) == np.inf


def test_a_gallery_s_folder_knows_it_on_another_machine(runs, tmp_path, monkeypatch):
    network, kept = network_of(0), tmp_path / "gallery"
    first = runs(network, noise=1e-3, seed=3)
    first.probe.keep(kept, first.fingerprint)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "another cache"))
    assert runs(network, probes=kept).fingerprint == first.fingerprint
    assert runs(network_of(1), probes=kept).fingerprint != first.fingerprint


def test_without_a_place_to_remember_the_digest_is_left(runs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    first = runs(network_of(0))
    assert first.fingerprint == first.probe.fingerprint
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    assert runs(network_of(0)).fingerprint == first.fingerprint
    damaged = next((tmp_path / "cache").rglob("*.npy"))
    damaged.write_bytes(b"ruin")
    assert runs(network_of(0)).fingerprint == first.fingerprint


def test_a_stated_fingerprint_needs_no_probe():
    assert open_embedder(f"{HERE}:Flattening").probe is None
    plain = open_embedder(f"{HERE}:flatten?size=2x3")
    other = open_embedder(f"{HERE}:flatten?size=2x3&fit=crop")
    assert plain.probe.subject != other.probe.subject
    assert plain.input.frame[:3] == INPUT_SIZE


HERE = "python:tests.embedders.networks"
RANDOM = np.random.default_rng(1).integers(0, 256, (5, *INPUT_SIZE), dtype=np.uint8)


@pytest.mark.parametrize("attribute", ["Flattening", "make_flattening", "flatten?size=2x3"])
def test_a_class_a_factory_and_a_function(attribute):
    embedder = open_embedder(f"{HERE}:{attribute}")
    assert (embedder.dim, embedder.input.frame[:3]) == (18, INPUT_SIZE)
    assert np.allclose(embedder.embed_pixels(RANDOM), normalized(flatten(RANDOM)), atol=1e-6)
    assert embedder.embed(np.zeros((2, 9, 9), dtype=np.uint8)).shape == (2, 18)


def test_the_fingerprint_is_stated_or_made_from_probe_images():
    assert open_embedder(f"{HERE}:Flattening").fingerprint == "stated by the object"
    made = [open_embedder(f"{HERE}:flatten?{size}").fingerprint for size in ("size=2x3", "size=3")]
    again = open_embedder(f"{HERE}:flatten?size=2x3").fingerprint
    assert made[0] == again
    assert made[0] != made[1]
    assert open_embedder(f"{HERE}:flatten?size=2x3&channels=1").dim == 6


def test_another_input_has_another_fingerprint():
    """Images of other shapes are fitted in another way; probe images do not show it."""

    def fingerprint(reference):
        return open_embedder(f"{HERE}:{reference}").fingerprint

    names = ("flatten?size=2x3", "Flattening", "WithoutInput?size=2x3")
    for plain in names:
        mark = "&" if "?" in plain else "?"
        made = {fingerprint(f"{plain}{mark}fit={fit}") for fit in ("stretch", "crop", "letterbox")}
        assert len(made) == 3
        assert fingerprint(plain) == fingerprint(f"{plain}{mark}fit=stretch")
    assert fingerprint("Flattening?size=2x3") == "stated by the object"
    inputs = ("size=2x3", "size=3x2", "size=2x3&channels=1", "size=2x3&fit=crop")
    made = {fingerprint(f"WithoutInput?{options}") for options in inputs}  # states no input
    assert len(made) == 4
    assert "stated by the object" not in made
    assert fingerprint("OnlySize") == fingerprint("OnlySize?channels=3") == "size only"
    assert fingerprint("OnlySize?channels=1") != "size only"
    earlier = "61658a36d0cc26e4181534f2efcfd974"  # as in earlier versions
    assert fingerprint("flatten?size=2x3") == earlier


@pytest.mark.filterwarnings("error")
def test_mirrored_and_read_only_images_reach_torch():
    embedder = open_embedder(f"{HERE}:InTorch")
    pixels = RANDOM // 2
    before = pixels.copy()
    pixels.flags.writeable = False
    want = flatten(pixels) + flatten(pixels[:, :, ::-1])
    assert np.array_equal(embedder.raw_embeddings(pixels), want)
    assert np.array_equal(pixels, before)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (HERE, "write python:MODULE:ATTRIBUTE"),
        ("python:no_such_module:x", "needs the Python module no_such_module"),
        (f"{HERE}:nothing", "has no attribute 'nothing'"),
        (f"{HERE}:INPUT_SIZE", "neither a callable"),
        (f"{HERE}:flatten", "does not say which images it takes"),
        (f"{HERE}:flatten?size=4&channels=2", "channels must be 1 or 3"),
        (f"{HERE}:Wrong", "says dim = 5 but returns vectors of 18"),
        (f"{HERE}:MethodAsFingerprint", "MethodAsFingerprint: fingerprint must be a text"),
        (f"{HERE}:shapeless?size=4", "must return numbers of shape"),
    ],
)
def test_what_is_no_embedder_is_named(reference, message):
    with pytest.raises(UserError, match=message):
        open_embedder(reference)
