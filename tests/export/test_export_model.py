import json
from dataclasses import replace

import numpy as np
import pytest

from tests.models.architectures.other_libraries import saved_network
from tests.models.cases import small_model
from unibct.errors import UserError
from unibct.export.export_model import (
    LOWEST_COSINE,
    agreement,
    embeddings_in_torch,
    export_model,
    sample_pixels,
)
from unibct.export.graph import ExportedModel
from unibct.models.architectures import build_network, find_architecture
from unibct.models.input import InputSpec
from unibct.models.model import Model


class Turned:
    """An exported file whose embeddings of some images are turned by an angle."""

    def __init__(self, vectors, angles):
        other = np.roll(vectors, 1, axis=1)
        other -= vectors * (vectors * other).sum(axis=1, keepdims=True)
        other /= np.linalg.norm(other, axis=1, keepdims=True)
        self.vectors = vectors * np.cos(angles)[:, None] + other * np.sin(angles)[:, None]

    def embed_pixels(self, pixels):
        return self.vectors


def test_the_worst_image_decides():
    model = small_model()
    pixels, names = sample_pixels(model, None, 40)
    vectors = embeddings_in_torch(model, pixels).astype(np.float64)
    angles = np.zeros(40)
    assert agreement(model, Turned(vectors, angles), pixels, names).is_enough
    angles[7], angles[9] = 0.1, 0.004
    found = agreement(model, Turned(vectors, angles), pixels, names)
    assert np.isclose(found.lowest, np.cos(0.1), atol=1e-6)
    assert (found.worst, found.images, found.is_enough) == (names[7], 40, False)
    angles[7] = 0
    found = agreement(model, Turned(vectors, angles), pixels, names)
    assert found.is_enough == (np.cos(0.004) >= LOWEST_COSINE)
    broken = Turned(vectors, angles)
    broken.vectors[3] = np.nan
    found = agreement(model, broken, pixels, names)
    assert (found.lowest, found.worst) == (-1.0, names[3])


def test_a_thousand_images_whatever_is_given(glyph_classes):
    model = small_model()
    pixels, names = sample_pixels(model, None)
    assert pixels.shape == (1000, 32, 32, 1)
    assert pixels.dtype == np.uint8
    assert len(set(names)) == 1000
    assert sum(name.startswith("noise") for name in names) == 500
    pixels, names = sample_pixels(model, glyph_classes, 300)
    assert names[: len(glyph_classes)] == glyph_classes.ids
    assert len(pixels) == len(names) == 300
    pixels, names = sample_pixels(model, glyph_classes, 20)
    rows = [glyph_classes.position[name] for name in names]
    assert (rows[0], rows[-1]) == (0, len(glyph_classes) - 1)
    assert np.array_equal(pixels[0, :, :, 0], glyph_classes.read(names[0]))


@pytest.mark.xdist_group("export")
@pytest.mark.usefixtures("ready_graphs")
def test_the_file_is_checked_and_described(mapped_model, tmp_path):
    model = mapped_model
    path, text = (tmp_path / "new" / name for name in ("m.onnx", "m.onnx.json"))
    export = export_model(model, path)
    assert export.agreement.images == 1000
    assert export.agreement.lowest >= 0.99999
    assert sorted(path.parent.iterdir()) == [path, text]
    described = json.loads(text.read_text())
    assert described["fingerprint"] == model.fingerprint
    assert described["bytes"] == path.stat().st_size
    assert described["input"]["layout"] == "nhwc"
    assert "int8" not in described


@pytest.mark.xdist_group("export")
@pytest.mark.usefixtures("ready_graphs")
def test_a_file_that_disagrees_is_not_written(tmp_path, monkeypatch):
    embed = ExportedModel.embed_pixels
    monkeypatch.setattr(ExportedModel, "embed_pixels", lambda self, p: embed(self, p)[:, ::-1])
    with pytest.raises(UserError, match="nothing was written: the exported graph gives other"):
        export_model(small_model(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.xdist_group("export")
@pytest.mark.usefixtures("ready_graphs")
def test_int8_is_measured_in_the_old_gallery(glyph_classes, tmp_path):
    model, old = small_model(), small_model(3)
    path = tmp_path / "m.int8.onnx"
    export = export_model(model, path, images=glyph_classes, int8=True, old=old)
    assert export.int8 == "static"
    assert export.loss.gallery == "old"
    assert export.agreement.lowest >= 0.99999  # of the exact graph
    found = ExportedModel(path)
    noted = json.loads(found.metadata["unibct.int8"])
    assert noted["kind"] == "static"
    assert noted["metrics"] == export.as_json()["loss"]["metrics"]
    pixels = np.stack([glyph_classes.read(i)[:, :, None] for i in glyph_classes.ids])
    cosines = (found.embed_pixels(pixels) * model.embed_pixels(pixels)).sum(axis=1)
    assert np.isclose(export.loss.lowest_cosine, cosines.min(), atol=1e-4)


@pytest.mark.xdist_group("other libraries")
def test_a_network_of_another_library(tmp_path):
    architecture = find_architecture(f"transformers:{saved_network('dinov2', tmp_path / 'hf')}")
    spec = InputSpec(48, 32, 3, fit="letterbox")  # not its own: positions are interpolated
    network = build_network(architecture, spec, 8).eval()
    model = Model(network, architecture.name, spec, 8, architecture_config=architecture.config)
    assert export_model(model, tmp_path / "m.onnx").agreement.is_enough


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path):
    model = small_model()
    for path, options, message in [
        ("m.onnx", {"int8": True}, "int8 needs images with classes"),
        ("m.onnx", {"old": replace(model)}, "ask for int8, or leave old out"),
        ("m.bin", {}, "must end with .onnx"),
    ]:
        with pytest.raises(UserError, match=message):
            export_model(model, tmp_path / path, **options)
    spec = InputSpec(1, 6, 1, fit="vectors")
    of_vectors = Model(build_network("projection", spec, 3).eval(), "projection", spec, 3)
    with pytest.raises(UserError, match="takes finished vectors; only models of images can be exp"):
        export_model(of_vectors, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
