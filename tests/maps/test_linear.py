import numpy as np
import torch
from sklearn.linear_model import Ridge

from tests.maps.cases import case, naive_weights, unit
from unibct.maps.linear import least_squares
from unibct.maps.vector_map import fit_vector_map


def test_least_squares_equals_scikit_learn():
    new, old, labels = case(new_dim=7, old_dim=4)
    weights = naive_weights(labels)
    ours = least_squares(*map(torch.from_numpy, (new, old, weights))).numpy()
    # Rows of length 1 whose weights sum to 1: the mean variance of a direction is 1/dim.
    ridge = Ridge(alpha=1e-3 / 7, fit_intercept=False)
    theirs = ridge.fit(unit(new), unit(old), sample_weight=weights).coef_
    assert np.allclose(ours, theirs, atol=1e-10)
    # The ridge is slight: nearly the solution of numpy's plain least squares.
    root = np.sqrt(weights)[:, None]
    plain = np.linalg.lstsq(root * unit(new), root * unit(old), rcond=None)[0].T
    assert np.abs(ours - plain).max() < 0.01


def test_least_squares_stands_fewer_images_than_dimensions():
    new, old, labels = case(rows=5, new_dim=8, old_dim=8)
    assert np.allclose(fit_vector_map("linear", new, old, labels)(new), unit(old), atol=0.05)
