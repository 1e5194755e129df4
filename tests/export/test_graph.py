import json
import sys

import numpy as np
import pytest
import torch

from tests.models.cases import small_model
from unibct.errors import UserError
from unibct.export.graph import (
    ExportedModel,
    PixelsToEmbeddings,
    add_metadata,
    file_metadata,
    require_onnx,
    write_graph,
)
from unibct.models.old_space import OldSpaceModel, add_projection


@pytest.mark.xdist_group("export")
def test_batches_are_put_together_in_order(small_file):
    pixels = np.random.default_rng(0).integers(0, 256, (130, 32, 32, 1)).astype(np.uint8)
    exported = ExportedModel(small_file)
    assert np.allclose(exported.embed_pixels(pixels), small_model().embed_pixels(pixels), atol=1e-5)
    mirrored = exported.embed_pixels(pixels[:, :, ::-1])  # a view
    assert np.allclose(mirrored, small_model().embed_pixels(pixels[:, :, ::-1]), atol=1e-5)


def some_pixels(model, count=5):
    shape = (count, *model.input.frame.shape)
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def require_same_embeddings(model):
    pixels = some_pixels(model)
    got = PixelsToEmbeddings(model)(torch.from_numpy(pixels)).detach().numpy()
    assert got.shape == (5, model.dim)
    assert np.allclose(got, model.embed_pixels(pixels), atol=1e-5)


def test_the_module_gives_the_embeddings_of_the_model(mapped_model):
    for model in (small_model(), mapped_model):
        require_same_embeddings(model)


def test_a_projection_into_the_old_space_is_inside_if_it_is_asked_for():
    model = small_model()
    add_projection(model.network, 16, 5)
    old_space = OldSpaceModel(model)
    for exported in (model, old_space):
        require_same_embeddings(exported)
    own, projected = file_metadata(model), file_metadata(old_space)
    assert (own["unibct.space"], projected["unibct.space"]) == ("own", "old")
    assert projected["unibct.dim"] == "5"
    assert projected["unibct.fingerprint"] == old_space.fingerprint
    assert own["unibct.fingerprint"] == model.fingerprint


@pytest.mark.xdist_group("export")
def test_the_file_takes_any_batch_and_says_what_it_takes(mapped_model, mapped_file):
    exported = ExportedModel(mapped_file)
    for count in (1, 2, 7, 70):
        pixels = some_pixels(mapped_model, count)
        want = mapped_model.embed_pixels(pixels)
        assert np.allclose(exported.embed_pixels(pixels), want, atol=1e-5)
    found = exported.metadata
    numbers = {"height": 18, "width": 20, "channels": 3, "mean": [0.1, 0.2, 0.3]}
    words = {"fit": "crop", "layout": "nhwc", "order": "rgb", "dtype": "uint8"}
    words |= {"resize": "crop, bilinear", "std": [0.3, 0.2, 0.1]}
    assert json.loads(found["unibct.input"]) == numbers | words
    assert (found["unibct.dim"], found["unibct.fingerprint"]) == ("16", mapped_model.fingerprint)
    assert found == file_metadata(mapped_model)
    assert [p.name for p in mapped_file.parent.iterdir()] == ["model.onnx"]  # one file


@pytest.mark.xdist_group("export")
def test_metadata_can_be_added(mapped_model, mapped_file, tmp_path):
    path = tmp_path / "more.onnx"
    path.write_bytes(mapped_file.read_bytes())
    add_metadata(path, {"unibct.int8": "x"})
    assert ExportedModel(path).metadata == file_metadata(mapped_model) | {"unibct.int8": "x"}


@pytest.mark.parametrize("training", [True, False])
def test_the_network_stays_in_its_mode(tmp_path, monkeypatch, training):
    network_modes = []

    def fail(module, *_, **__):
        network_modes.append(module.network.training)
        raise RuntimeError("enough")

    monkeypatch.setattr(torch.onnx, "export", fail)
    model = small_model()
    model.network.train(training)
    with pytest.raises(UserError, match="enough"):
        write_graph(model, tmp_path / "m.onnx")
    assert network_modes == [False]
    assert model.network.training == training


def test_what_is_missing_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs the library onnxscript: pip install 'unibct\[onnx"):
        require_onnx()


def test_a_network_that_cannot_be_exported_is_named(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such operator\nand much more")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UserError, match=r"resnet-small cannot be exported to ONNX: no such.*or$"):
        write_graph(small_model(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
