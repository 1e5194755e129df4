import numpy as np
import pytest
import torch

from unibct.data.decoding import VECTORS
from unibct.errors import UserError
from unibct.models.architectures.table import build_network
from unibct.models.folder import load_model, save_model
from unibct.models.input import InputSpec
from unibct.models.model import Model

SPEC = InputSpec(1, 6, 1, fit=VECTORS)


def test_a_projection_is_a_matrix_and_a_shift():
    network = build_network("projection", SPEC, 3, seed=1)
    layer = network.layers
    vectors = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    expected = np.sqrt(6) * vectors @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    found = network(torch.from_numpy(vectors[:, None, None, :])).detach().numpy()
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["projection", "projection-mlp"])
def test_a_model_of_vectors_embeds_vectors_and_refuses_images(name, tmp_path):
    model = Model(build_network(name, SPEC, 3).eval(), name, SPEC, 3)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    vectors = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    embedded = loaded.embed(vectors)
    assert np.allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-6)
    assert np.array_equal(embedded, model.embed(vectors))
    with pytest.raises(UserError, match="the vectors have dimension 5; the model takes 6"):
        loaded.embed(vectors[:, :5])


def test_vectors_are_scaled_to_length_1_and_have_no_mirror_image():
    model = Model(build_network("projection", SPEC, 3).eval(), "projection", SPEC, 3)
    vectors = 10 * np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = unit[:, None, :, None]
    assert np.allclose(model.embed(vectors), model.embed_pixels(rows), atol=1e-6)
    assert np.array_equal(model.raw_embeddings(rows), model.raw_embeddings(rows, flip_test=False))
    vectors[2] = 0
    with pytest.raises(UserError, match="vectors has rows of zeros only, first row 2"):
        model.embed(vectors)
