import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge

from unibct.errors import UserError
from unibct.maps.adapter import (
    ADAPTERS,
    Adapter,
    balanced_weights,
    fit_adapter,
    least_squares,
    procrustes,
)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def rotation(dim, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


def case(rows=60, new_dim=6, old_dim=6, seed=0):
    """Unrelated embeddings, of any length, in five classes of different size."""
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.geometric(0.4, rows), 5) - 1
    return rng.normal(size=(rows, new_dim)), rng.normal(size=(rows, old_dim)), labels


def naive_weights(labels):
    classes = set(labels.tolist())
    return np.array([1 / (labels == c).sum() / len(classes) for c in labels])


def test_every_class_counts_the_same():
    labels = np.array([7, 2, 2, 7, 2, 2, 9])
    weights = balanced_weights(labels, 7).numpy()
    assert np.allclose(weights, naive_weights(labels))
    assert np.allclose([weights[labels == c].sum() for c in (2, 7, 9)], 1 / 3)


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
    adapter = fit_adapter("procrustes", new, new @ turn.T, labels)
    assert np.allclose(adapter.layers[0][0].numpy(), turn, atol=1e-5)
    assert np.allclose(adapter(new), unit(new @ turn.T), atol=1e-5)


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
    assert np.allclose(fit_adapter("linear", new, old, labels)(new), unit(old), atol=0.05)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_every_adapter_beats_the_identity(kind):
    new, noise, labels = case(rows=2000, new_dim=16, old_dim=16)
    old = unit(unit(new) @ rotation(16).T + 0.05 * noise)
    adapted = fit_adapter(kind, new[:1500], old[:1500], labels[:1500])(new[1500:])
    cosine = (adapted * old[1500:]).sum(axis=1)
    identity = (unit(new[1500:]) * old[1500:]).sum(axis=1)
    assert identity.mean() < 0.5
    assert cosine.mean() > 0.9


def test_a_nonlinear_map_is_better_learnt_by_the_mlp():
    # Embeddings on a circle, whose old ones go round it twice as fast.
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 1500)
    labels = np.arange(1500) % 5
    new, old = (
        np.stack([np.cos(k * angle), np.sin(k * angle)], axis=1) @ rotation(16, seed=k)[:2]
        for k in (1, 2)
    )
    mean = {}
    for kind in ADAPTERS:
        adapted = fit_adapter(kind, new[:1000], old[:1000], labels[:1000])(new[1000:])
        mean[kind] = (adapted * old[1000:]).sum(axis=1).mean()
    assert mean["mlp"] > 0.9
    assert mean["linear"] < 0.3


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_huge_class_does_not_dominate(kind):
    # The new model cannot tell two classes apart that the old one puts at right angles.
    rng = np.random.default_rng(0)
    labels = (np.arange(2000) >= 1900).astype(int)
    new = np.eye(16)[np.zeros_like(labels)] + 0.01 * rng.normal(size=(2000, 16))
    old = np.eye(16)[labels] + 0.01 * rng.normal(size=(2000, 16))
    large, small, *_ = fit_adapter(kind, new, old, labels)(new).mean(axis=0)
    assert abs(large - small) < 0.15
    large, small, *_ = fit_adapter(kind, new, old, np.arange(2000))(new).mean(axis=0)
    assert large - small > 0.5, "without the classes it does"


@pytest.mark.parametrize("kind", ADAPTERS)
def test_kinds_of_arrays_and_lengths(kind):
    new, old, labels = case()
    adapter = fit_adapter(kind, new, old, labels)
    ours, tensors = adapter(new), [torch.from_numpy(a) for a in (new, old, labels)]
    assert isinstance(ours, np.ndarray)
    assert ours.dtype == np.float32
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
    theirs = fit_adapter(kind, *tensors)(tensors[0].requires_grad_())
    assert isinstance(theirs, torch.Tensor)
    assert not theirs.requires_grad
    assert np.allclose(theirs.numpy(), ours, atol=1e-6)
    longer = fit_adapter(kind, 3 * new, 0.2 * old, labels)(5 * new)
    # Rounding differs, and two thousand steps of the MLP's training make much of it.
    assert (longer * ours).sum(axis=1).mean() > (0.97 if kind == "mlp" else 1 - 1e-6)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_the_dimensions_may_differ(kind):
    new, old, labels = case(new_dim=7, old_dim=3)
    assert fit_adapter(kind, new, old, labels)(new[:2]).shape == (2, 3)


def test_two_layers_have_a_relu_between_them():
    adapter = Adapter(
        "mlp",
        (
            (torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.0, 0.2])),
            (torch.tensor([[3.0, 1.0], [0.0, 1.0]]), torch.tensor([0.0, 0.0])),
        ),
    )
    # (−6, 8) is (−0.6, 0.8) at length 1, then (−0.6, 1), (0, 1), (1, 1).
    assert np.allclose(adapter(np.array([[-6.0, 8.0]])), [[0.5**0.5, 0.5**0.5]])


def test_same_seed_same_mlp_whatever_the_global_state():
    new, old, labels = case()

    def fitted(seed):
        return fit_adapter("mlp", new, old, labels, seed=seed)(new)

    torch.manual_seed(1)
    first, state = fitted(3), torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(1).get_state()), "and leaves it as it was"
    torch.manual_seed(2)
    assert np.array_equal(fitted(3), first)
    assert not np.allclose(fitted(4), first, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "spline"}, "unknown adapter 'spline'; choose one of procrustes, linear, mlp"),
        ({"new": np.ones((3, 2))}, "new has 3 rows but old has 4"),
        ({"new": np.ones((4, 3))}, "new has dimension 3 but old has dimension 2"),
        ({"labels": np.zeros(5, dtype=int)}, "5 entries, but there are 4 rows"),
        ({"old": np.full((4, 2), np.nan)}, "old has NaN or infinite values"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"kind": "procrustes", "new": np.ones((4, 2)), "old": np.ones((4, 2))}
    arguments |= {"labels": np.zeros(4, dtype=int)} | change
    with pytest.raises(UserError, match=message):
        fit_adapter(**arguments)
