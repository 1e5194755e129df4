"""Exported files of tiny models, made once."""

from pathlib import Path

import pytest
import torch

from tests.models.cases import small_model
from unibct.export import export_model
from unibct.export.graph import write_graph
from unibct.maps.vector_map import VectorMap
from unibct.models.architectures import build_network, find_architecture
from unibct.models.input import InputSpec
from unibct.models.model import Model

OWN = "python:tests.models.architectures.own_networks"


def own_model(name, spec=None, dim=8) -> Model:
    """A model with a network of ``own_networks``."""
    architecture = find_architecture(f"{OWN}:{name}")
    spec = spec or architecture.input
    network = build_network(architecture, spec, dim).eval()
    config = architecture.config
    return Model(network, architecture.name, spec, dim, architecture_config=config)


@pytest.fixture(scope="session")
def mapped_model() -> Model:
    """Colour images, a mean for each channel, and a map into another dimension."""
    spec = InputSpec(18, 20, 3, (0.1, 0.2, 0.3), (0.3, 0.2, 0.1), "crop")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 8, generator=generator)
    vector_map = VectorMap("linear", ((weight, torch.ones(16)),))
    return own_model("convolutions", spec).adapted(vector_map, small_model())


@pytest.fixture(scope="session")
def mapped_file(mapped_model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("mapped") / "model.onnx"
    write_graph(mapped_model, path)
    return path


@pytest.fixture(scope="session")
def small_file(tmp_path_factory) -> Path:
    """The file of ``small_model()``."""
    path = tmp_path_factory.mktemp("small") / "model.onnx"
    write_graph(small_model(), path)
    return path


@pytest.fixture(scope="session")
def products_model() -> Model:
    return own_model("products")


@pytest.fixture(scope="session")
def products_file(products_model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("products") / "model.onnx"
    write_graph(products_model, path)
    return path


@pytest.fixture
def ready_graphs(monkeypatch, small_file, mapped_file, mapped_model):
    """Take the files that are ready instead of making a graph again, which takes seconds."""
    ready = {small_model().fingerprint: small_file, mapped_model.fingerprint: mapped_file}

    def copy(model, path):
        path.write_bytes(ready[model.fingerprint].read_bytes())

    monkeypatch.setattr(export_model, "write_graph", copy)
