import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge

from tests.maps.cases import case, naive_weights, rotation, unit
from unibct.errors import UserError
from unibct.maps import MAPS
from unibct.maps.vector_map import (
    Pairs,
    VectorMap,
    balanced_weights,
    fit_affine,
    fit_linear,
    fit_procrustes,
    fit_vector_map,
    supervised_contrast,
)

TRAINED = ("mlp", "supervised")
BY_DISTANCE = [kind for kind in MAPS if kind != "supervised"]


def fitted(kind, new, old, labels, seed=0):
    return fit_vector_map(kind, new=new, old=old, labels=labels, seed=seed)


def pairs_of(new, old, weights):
    return Pairs(*map(torch.from_numpy, (new, old, weights)), torch.empty(0))


def test_every_class_counts_the_same():
    labels = np.array([7, 2, 2, 7, 2, 2, 9])
    weights = balanced_weights(labels, 7).numpy()
    assert np.allclose(weights, naive_weights(labels))
    assert np.allclose([weights[labels == c].sum() for c in (2, 7, 9)], 1 / 3)


@pytest.mark.usefixtures("short_maps")
@pytest.mark.parametrize("kind", BY_DISTANCE)
def test_every_map_beats_the_identity(kind):
    new, noise, labels = case(rows=2000, new_dim=16, old_dim=16)
    old = unit(unit(new) @ rotation(16).T + 0.05 * noise)
    adapted = fitted(kind, new[:1500], old[:1500], labels[:1500])(new[1500:])
    cosine = (adapted * old[1500:]).sum(axis=1)
    identity = (unit(new[1500:]) * old[1500:]).sum(axis=1)
    assert identity.mean() < 0.5
    assert cosine.mean() > 0.9


@pytest.mark.usefixtures("short_maps")
@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_DISTANCE)
def test_a_huge_class_does_not_dominate(kind):
    # The new model cannot tell two classes apart that the old one puts at right angles.
    rng = np.random.default_rng(0)
    labels = (np.arange(2000) >= 1900).astype(int)
    new = np.eye(16)[np.zeros_like(labels)] + 0.01 * rng.normal(size=(2000, 16))
    old = np.eye(16)[labels] + 0.01 * rng.normal(size=(2000, 16))
    large, small, *_ = fitted(kind, new, old, labels)(new).mean(axis=0)
    assert abs(large - small) < 0.15
    large, small, *_ = fitted(kind, new, old, np.arange(2000))(new).mean(axis=0)
    assert large - small > 0.5, "without the classes it does"


@pytest.mark.usefixtures("short_maps")
@pytest.mark.slow
@pytest.mark.parametrize("kind", MAPS)
def test_kinds_of_arrays_and_lengths(kind):
    new, old, labels = case()
    vector_map = fitted(kind, new, old, labels)
    ours, tensors = vector_map(new), [torch.from_numpy(a) for a in (new, old, labels)]
    assert isinstance(ours, np.ndarray)
    assert ours.dtype == np.float32
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
    theirs = fitted(kind, tensors[0], tensors[1], tensors[2])(tensors[0].requires_grad_())
    assert isinstance(theirs, torch.Tensor)
    assert not theirs.requires_grad
    assert np.allclose(theirs.numpy(), ours, atol=1e-6)
    longer = fitted(kind, 3 * new, 0.2 * old, labels)(5 * new)
    # Rounding differs, and two thousand steps of the MLP's training make much of it.
    assert (longer * ours).sum(axis=1).mean() > (0.97 if kind in TRAINED else 1 - 1e-6)


@pytest.mark.usefixtures("short_maps")
@pytest.mark.parametrize("kind", [kind for kind in MAPS if kind != "procrustes"])
def test_the_dimensions_may_differ(kind):
    new, old, labels = case(new_dim=7, old_dim=3)
    assert fitted(kind, new, old, labels)(new[:2]).shape == (2, 3)


def test_two_layers_have_a_relu_between_them():
    layers = ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.2]), ([[3.0, 1.0], [0.0, 1.0]], [0.0, 0.0])
    vector_map = VectorMap("mlp", [tuple(map(torch.tensor, layer)) for layer in layers])
    # (−6, 8) is (−0.6, 0.8) at length 1, then (−0.6, 1), (0, 1), (1, 1).
    assert np.allclose(vector_map(np.array([[-6.0, 8.0]])), [[0.5**0.5, 0.5**0.5]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "spline"}, "unknown map 'spline'.*; choose one of procrustes, linear, mlp"),
        ({"new": np.eye(3, 2)}, "new has 3 rows but old has 4"),
        ({"new": np.eye(4, 3)}, "new has dimension 3 but old has dimension 2"),
        ({"labels": np.zeros(5, dtype=int)}, "5 entries, but there are 4 rows"),
        ({"old": np.full((4, 2), np.nan)}, "old has NaN or infinite values"),
        ({"old": torch.full((4, 2), torch.nan)}, "old has NaN or infinite values"),
        ({"new": torch.ones(4)}, r"new must have the shape \(rows, dim\)"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"kind": "procrustes", "new": np.eye(4, 2), "old": np.eye(4, 2)}
    arguments |= {"labels": np.zeros(4, dtype=int)} | change
    with pytest.raises(UserError, match=message):
        fit_vector_map(**arguments)


@pytest.mark.usefixtures("short_maps")
@pytest.mark.parametrize("kind", MAPS)
def test_a_map_needs_several_different_images(kind):
    new, old, labels = case()
    with pytest.raises(UserError, match="new is empty: a map is fitted on"):
        fitted(kind, new[:0], old[:0], labels[:0])
    lengths = np.linspace(0.5, 2, len(new))[:, None]
    for given, name in [
        ((new[:1] * lengths, old, labels), "new"),
        ((torch.zeros(new.shape), old, labels), "new"),
        ((new, old[:1] * lengths, labels), "old"),
        ((new[:1], old[:1], labels[:1]), "new"),
    ]:
        with pytest.raises(UserError, match=f"all rows of {name} have the same direction"):
            fitted(kind, *given)


def test_rows_that_differ_late_are_different_rows(monkeypatch):
    monkeypatch.setattr("unibct.maps.vector_map._BLOCK", 2)
    new = np.ones((5, 2))
    new[4, 1] = 2
    assert np.isfinite(fitted("affine", new, np.eye(5, 2), np.arange(5))(new)).all()


def test_a_single_vector_is_refused_in_one_line():
    new, old, labels = case()
    with pytest.raises(UserError, match=r"embeddings must have the shape \(rows, dim\)"):
        fitted("linear", new, old, labels)(torch.zeros(6))


@pytest.mark.usefixtures("short_maps")
@pytest.mark.slow
@pytest.mark.parametrize("kind", MAPS)
def test_a_map_is_made_again_from_its_tensors(kind):
    new, old, labels = case()
    vector_map = fitted(kind, new, old, labels)
    again = VectorMap.of_tensors(kind, vector_map.tensors())
    assert np.array_equal(again(new), vector_map(new))
    assert again.new_dim == 6
    with pytest.raises(UserError, match="takes embeddings of dimension 6, not 5"):
        again(new[:, :5])


def test_centred_least_squares_equals_scikit_learn_with_an_intercept():
    new, old, labels = case(new_dim=5, old_dim=3)
    weights = naive_weights(labels)
    ((matrix, shift),) = fit_affine(pairs_of(new, old, weights), 0)
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
        kind: np.abs(fitted(kind, new, old, labels)(new) - unit(old)).mean()
        for kind in ("linear", "affine")
    }
    assert errors["affine"] < errors["linear"] / 10


def test_least_squares_equals_scikit_learn():
    new, old, labels = case(new_dim=7, old_dim=4)
    weights = naive_weights(labels)
    ours = fit_linear(pairs_of(new, old, weights), 0)[0][0].numpy()
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
    assert np.allclose(fitted("linear", new, old, labels)(new), unit(old), atol=0.05)


@pytest.mark.slow
def test_a_nonlinear_map_is_better_learnt_by_the_mlp():
    # Embeddings on a circle, whose old ones go round it twice as fast.
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 1500)
    labels = np.arange(1500) % 5
    new, old = (
        np.stack([np.cos(k * angle), np.sin(k * angle)], axis=1) @ rotation(16, seed=k)[:2]
        for k in (1, 2)
    )
    mean = {}
    for kind in ("linear", "mlp"):
        adapted = fitted(kind, new[:1000], old[:1000], labels[:1000])(new[1000:])
        mean[kind] = (adapted * old[1000:]).sum(axis=1).mean()
    assert mean["mlp"] > 0.9
    assert mean["linear"] < 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("short_maps")
def test_same_seed_same_mlp_whatever_the_global_state():
    new, old, labels = case()

    def mlp(seed):
        return fitted("mlp", new, old, labels, seed)(new)

    torch.manual_seed(1)
    first, state = mlp(3), torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(1).get_state()), "and leaves it as it was"
    torch.manual_seed(2)
    assert np.array_equal(mlp(3), first)
    assert not np.allclose(mlp(4), first, atol=1e-3)


def test_procrustes_equals_scipy_and_is_orthogonal():
    new, old, labels = case()
    weights = naive_weights(labels)
    ours = fit_procrustes(pairs_of(new, old, weights), 0)[0][0].numpy()
    root = np.sqrt(weights)[:, None]
    theirs, _ = orthogonal_procrustes(root * unit(new), root * unit(old))
    assert np.allclose(ours, theirs.T, atol=1e-10)
    assert np.allclose(ours @ ours.T, np.eye(6), atol=1e-12)
    unweighted, _ = orthogonal_procrustes(unit(new), unit(old))
    assert not np.allclose(ours, unweighted.T, atol=1e-2), "the weights matter here"


def test_procrustes_recovers_a_rotation():
    new, _, labels = case()
    turn = rotation(6)
    vector_map = fitted("procrustes", new, new @ turn.T, labels)
    assert np.allclose(vector_map.layers[0][0].numpy(), turn, atol=1e-5)
    assert np.allclose(vector_map(new), unit(new @ turn.T), atol=1e-5)


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
        mapped = fitted(kind, new[train], old[train], labels[train])(new[test])
        nearest = (mapped @ unit(old[train]).T).argmax(axis=1)
        right[kind] = (labels[train][nearest] == labels[test]).mean()
    assert right["supervised"] > right["affine"] + 0.1


@pytest.mark.slow
def test_the_random_state_outside_stays_as_it_is():
    state = torch.random.get_rng_state()
    rng = np.random.default_rng(0)
    new, labels = rng.normal(size=(20, 3)), np.arange(20) % 2
    results = [fitted("supervised", new, new, labels, s)(new) for s in (0, 0, 1)]
    assert torch.equal(state, torch.random.get_rng_state())
    assert np.array_equal(results[0], results[1])
