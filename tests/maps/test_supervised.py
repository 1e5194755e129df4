import numpy as np
import pytest
import torch

from tests.maps.cases import unit
from unibct.maps.supervised import supervised_contrast
from unibct.maps.vector_map import fit_vector_map


def test_the_loss_equals_a_loop():
    rng = np.random.default_rng(0)
    mapped, old = rng.normal(size=(6, 3)), unit(rng.normal(size=(6, 3)))
    labels, weights = np.array([0, 0, 1, 1, 1, 2]), np.arange(1, 7) / 21
    expected = 0.0
    for i in range(6):
        scores = np.exp(old @ unit(mapped)[i] / 0.1)
        mates = [j for j in range(6) if labels[j] == labels[i]]
        expected -= weights[i] * np.mean([np.log(scores[j] / scores.sum()) for j in mates])
    tensors = (torch.from_numpy(array) for array in (mapped, old, labels, weights))
    assert np.isclose(supervised_contrast(*tensors, tau=0.1).item(), expected)


@pytest.mark.slow
def test_classes_that_least_squares_mixes_are_told_apart():
    # Most of the old variance says nothing about the class: least squares spends itself on it.
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 6
    new = rng.normal(size=(600, 12))
    new[:, :6] += 3 * np.eye(6)[labels]
    old = np.concatenate([np.eye(6)[labels], new[:, 6:]], axis=1)
    train, test = slice(0, 400), slice(400, 600)
    right = {}
    for kind in ("affine", "supervised"):
        mapped = fit_vector_map(kind, new[train], old[train], labels[train])(new[test])
        nearest = (mapped @ unit(old[train]).T).argmax(axis=1)
        right[kind] = (labels[train][nearest] == labels[test]).mean()
    assert right["supervised"] > right["affine"] + 0.1


@pytest.mark.slow
def test_the_random_state_outside_stays_as_it_is():
    state = torch.random.get_rng_state()
    rng = np.random.default_rng(0)
    new, labels = rng.normal(size=(20, 3)), np.arange(20) % 2
    results = [fit_vector_map("supervised", new, new, labels, seed=s)(new) for s in (0, 0, 1)]
    assert torch.equal(state, torch.random.get_rng_state())
    assert np.array_equal(results[0], results[1])
