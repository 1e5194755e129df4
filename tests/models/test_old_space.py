from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models.cases import small_model
from unibct.embedders import open_embedder
from unibct.errors import UserError
from unibct.maps.vector_map import fit_vector_map
from unibct.models.model_folder import load_model, save_model
from unibct.models.old_space import (
    OldSpaceModel,
    add_projection,
    known_score_scale,
    old_space_dim,
    projection_weight,
    to_old_space,
    without_projection,
)

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 32, 32), dtype=np.uint8)


def projecting_model(seed=0):
    model = small_model()
    add_projection(model.network, 16, 5, seed=seed)
    return model


def test_the_projection_belongs_to_the_model(tmp_path):
    plain, model = small_model(), projecting_model()
    assert np.array_equal(plain.embed(IMAGES), model.embed(IMAGES))  # the full vector is as it was
    prints = {plain.fingerprint, model.fingerprint, projecting_model(seed=1).fingerprint}
    assert len(prints) == 3
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.fingerprint == model.fingerprint
    assert old_space_dim(loaded) == 5
    assert old_space_dim(plain) is None
    names = without_projection(model.network.state_dict())
    assert names.keys() == plain.network.state_dict().keys()


def test_projected_vectors_are_the_matrix_times_the_vectors(tmp_path):
    model = projecting_model()
    vectors, matrix = model.embed(IMAGES), projection_weight(model.network).detach().numpy()
    assert np.allclose(matrix @ matrix.T, np.eye(5), atol=1e-5)
    expected = np.stack([matrix @ v / np.linalg.norm(matrix @ v) for v in vectors])
    assert np.allclose(to_old_space(model, vectors), expected, atol=1e-6)
    assert np.allclose(to_old_space(model, 3 * vectors), expected, atol=1e-6)
    assert isinstance(to_old_space(model, torch.from_numpy(vectors)), torch.Tensor)
    save_model(model, tmp_path / "m")
    opened = open_embedder(f"{tmp_path / 'm'}?space=old")
    assert isinstance(opened, OldSpaceModel)
    assert np.allclose(opened.embed(IMAGES), expected, atol=1e-6)
    assert opened.dim == 5
    assert opened.fingerprint != model.fingerprint
    pixels = IMAGES[..., None]
    raw = opened.raw_embeddings(pixels)
    assert np.allclose(raw, model.raw_embeddings(pixels) @ matrix.T, atol=1e-4)


def test_a_model_without_projection_says_so(tmp_path):
    with pytest.raises(UserError, match="has no projection into an old space"):
        to_old_space(small_model(), np.ones((1, 16)))
    save_model(small_model(), tmp_path / "m")
    with pytest.raises(UserError, match="has no projection into an old space"):
        open_embedder(f"{tmp_path / 'm'}?space=old")
    with pytest.raises(UserError, match="unknown space 'new'"):
        open_embedder(f"{tmp_path / 'm'}?space=new")


@pytest.mark.parametrize("old_dim", [7, 16])
def test_an_adapted_model_has_one_way_into_the_old_space(tmp_path, old_dim):
    """Its network may have a projection too, for vectors that are not its own any more."""
    rng = np.random.default_rng(0)
    new, old = rng.normal(size=(64, 16)), rng.normal(size=(64, old_dim))
    vector_map = fit_vector_map("linear", new=new, old=old, labels=np.arange(64) % 8)
    adapted = projecting_model().adapted(vector_map, small_model())
    adapted = replace(adapted, dim=old_dim)
    save_model(adapted, tmp_path / "m")
    with pytest.raises(UserError, match="has no projection into an old space: it is adapted"):
        open_embedder(f"{tmp_path / 'm'}?space=old")
    with pytest.raises(UserError, match="has no projection into an old space: it is adapted"):
        to_old_space(adapted, np.ones((1, old_dim)))


def test_embeddings_of_another_dimension_are_refused():
    with pytest.raises(UserError, match=r"embeddings has dimension 7, and .* has 16"):
        to_old_space(projecting_model(), np.ones((2, 7)))


def test_a_scale_is_known_for_the_model_s_own_old_model_only():
    model = replace(projecting_model(), old_fingerprint="old").with_score_scale(1.25)
    assert known_score_scale(model, "old") == 1.25
    assert known_score_scale(model, "another") is None
    assert OldSpaceModel(model).score_scale == known_score_scale(OldSpaceModel(model), "old")
    assert known_score_scale(OldSpaceModel(model), "another") is None
    assert known_score_scale(object(), "old") is None
    vector_map = fit_vector_map("procrustes", new=np.eye(16), old=np.eye(16), labels=np.arange(16))
    adapted = replace(small_model(), old_fingerprint="old").with_score_scale(2.0)
    assert adapted.adapted(vector_map, model).score_scale is None, "the space is another one"
