import numpy as np
import torch
from sklearn.linear_model import Ridge

from tests.maps.cases import case, naive_weights, rotation, unit
from unibct.maps.affine import centred_least_squares
from unibct.maps.vector_map import fit_vector_map


def test_centred_least_squares_equals_scikit_learn_with_an_intercept():
    new, old, labels = case(new_dim=5, old_dim=3)
    weights = naive_weights(labels)
    matrix, shift = centred_least_squares(*map(torch.from_numpy, (new, old, weights)))
    x, root = unit(new), weights[:, None]
    centred = x - (root * x).sum(axis=0)
    ridge = 1e-3 * np.diag(centred.T @ (root * centred)).mean()
    theirs = Ridge(alpha=ridge, fit_intercept=True).fit(x, unit(old), sample_weight=weights)
    assert np.allclose(matrix.numpy(), theirs.coef_, atol=1e-8)
    assert np.allclose(shift.numpy(), theirs.intercept_, atol=1e-8)


def test_a_shift_between_the_spaces_is_found():
    rng = np.random.default_rng(0)
    new = unit(rng.normal(size=(400, 4)))
    old = new @ rotation(4).T + 3 * np.eye(4)[0]  # far from the origin
    labels = np.arange(400) % 10
    errors = {
        kind: np.abs(fit_vector_map(kind, new, old, labels)(new) - unit(old)).mean()
        for kind in ("linear", "affine")
    }
    assert errors["affine"] < errors["linear"] / 10
