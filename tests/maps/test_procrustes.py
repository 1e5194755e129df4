import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes

from tests.maps.cases import case, naive_weights, rotation, unit
from unibct.maps.procrustes import procrustes
from unibct.maps.vector_map import fit_vector_map


def test_procrustes_equals_scipy_and_is_orthogonal():
    new, old, labels = case()
    weights = naive_weights(labels)
    ours = procrustes(*map(torch.from_numpy, (new, old, weights))).numpy()
    root = np.sqrt(weights)[:, None]
    theirs, _ = orthogonal_procrustes(root * unit(new), root * unit(old))
    assert np.allclose(ours, theirs.T, atol=1e-10)
    assert np.allclose(ours @ ours.T, np.eye(6), atol=1e-12)
    unweighted, _ = orthogonal_procrustes(unit(new), unit(old))
    assert not np.allclose(ours, unweighted.T, atol=1e-2), "the weights matter here"


def test_procrustes_recovers_a_rotation():
    new, _, labels = case()
    turn = rotation(6)
    vector_map = fit_vector_map("procrustes", new, new @ turn.T, labels)
    assert np.allclose(vector_map.layers[0][0].numpy(), turn, atol=1e-5)
    assert np.allclose(vector_map(new), unit(new @ turn.T), atol=1e-5)
