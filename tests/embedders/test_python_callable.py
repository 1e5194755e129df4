import numpy as np
import pytest

from tests.embedders.networks import INPUT_SIZE, flatten
from unibct.arrays import normalized
from unibct.embedders.table import open_embedder
from unibct.errors import UserError

HERE = "python:tests.embedders.networks"
PIXELS = np.random.default_rng(1).integers(0, 256, (5, *INPUT_SIZE), dtype=np.uint8)


@pytest.mark.parametrize("attribute", ["Flattening", "make_flattening", "flatten?size=2x3"])
def test_a_class_a_factory_and_a_function(attribute):
    embedder = open_embedder(f"{HERE}:{attribute}")
    assert (embedder.dim, embedder.input.frame[:3]) == (18, INPUT_SIZE)
    assert np.allclose(embedder.embed_pixels(PIXELS), normalized(flatten(PIXELS)), atol=1e-6)
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
    assert (
        fingerprint("flatten?size=2x3") == "61658a36d0cc26e4181534f2efcfd974"
    )  # as in earlier versions


@pytest.mark.filterwarnings("error")
def test_mirrored_and_read_only_images_reach_torch():
    embedder = open_embedder(f"{HERE}:InTorch")
    pixels = PIXELS // 2
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
