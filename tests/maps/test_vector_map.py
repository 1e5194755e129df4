import numpy as np
import pytest
import torch

from tests.maps.cases import case, naive_weights, rotation, unit
from unibct.errors import UserError
from unibct.maps.table import MAPS
from unibct.maps.vector_map import VectorMap, balanced_weights, fit_vector_map

pytestmark = pytest.mark.usefixtures("short_maps")
TRAINED = ("mlp", "supervised")
BY_DISTANCE = [kind for kind in MAPS if kind != "supervised"]


def test_every_class_counts_the_same():
    labels = np.array([7, 2, 2, 7, 2, 2, 9])
    weights = balanced_weights(labels, 7).numpy()
    assert np.allclose(weights, naive_weights(labels))
    assert np.allclose([weights[labels == c].sum() for c in (2, 7, 9)], 1 / 3)


@pytest.mark.parametrize("kind", BY_DISTANCE)
def test_every_map_beats_the_identity(kind):
    new, noise, labels = case(rows=2000, new_dim=16, old_dim=16)
    old = unit(unit(new) @ rotation(16).T + 0.05 * noise)
    adapted = fit_vector_map(kind, new[:1500], old[:1500], labels[:1500])(new[1500:])
    cosine = (adapted * old[1500:]).sum(axis=1)
    identity = (unit(new[1500:]) * old[1500:]).sum(axis=1)
    assert identity.mean() < 0.5
    assert cosine.mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_DISTANCE)
def test_a_huge_class_does_not_dominate(kind):
    # The new model cannot tell two classes apart that the old one puts at right angles.
    rng = np.random.default_rng(0)
    labels = (np.arange(2000) >= 1900).astype(int)
    new = np.eye(16)[np.zeros_like(labels)] + 0.01 * rng.normal(size=(2000, 16))
    old = np.eye(16)[labels] + 0.01 * rng.normal(size=(2000, 16))
    large, small, *_ = fit_vector_map(kind, new, old, labels)(new).mean(axis=0)
    assert abs(large - small) < 0.15
    large, small, *_ = fit_vector_map(kind, new, old, np.arange(2000))(new).mean(axis=0)
    assert large - small > 0.5, "without the classes it does"


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAPS)
def test_kinds_of_arrays_and_lengths(kind):
    new, old, labels = case()
    vector_map = fit_vector_map(kind, new, old, labels)
    ours, tensors = vector_map(new), [torch.from_numpy(a) for a in (new, old, labels)]
    assert isinstance(ours, np.ndarray)
    assert ours.dtype == np.float32
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
    theirs = fit_vector_map(kind, *tensors)(tensors[0].requires_grad_())
    assert isinstance(theirs, torch.Tensor)
    assert not theirs.requires_grad
    assert np.allclose(theirs.numpy(), ours, atol=1e-6)
    longer = fit_vector_map(kind, 3 * new, 0.2 * old, labels)(5 * new)
    # Rounding differs, and two thousand steps of the MLP's training make much of it.
    assert (longer * ours).sum(axis=1).mean() > (0.97 if kind in TRAINED else 1 - 1e-6)


@pytest.mark.parametrize("kind", [kind for kind in MAPS if kind != "procrustes"])
def test_the_dimensions_may_differ(kind):
    new, old, labels = case(new_dim=7, old_dim=3)
    assert fit_vector_map(kind, new, old, labels)(new[:2]).shape == (2, 3)


def test_two_layers_have_a_relu_between_them():
    vector_map = VectorMap(
        "mlp",
        (
            (torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.0, 0.2])),
            (torch.tensor([[3.0, 1.0], [0.0, 1.0]]), torch.tensor([0.0, 0.0])),
        ),
    )
    # (−6, 8) is (−0.6, 0.8) at length 1, then (−0.6, 1), (0, 1), (1, 1).
    assert np.allclose(vector_map(np.array([[-6.0, 8.0]])), [[0.5**0.5, 0.5**0.5]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "spline"}, "unknown map 'spline'; choose one of procrustes, linear, mlp"),
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


@pytest.mark.parametrize("kind", MAPS)
def test_a_map_needs_several_different_images(kind):
    new, old, labels = case()
    with pytest.raises(UserError, match="new is empty: a map is fitted on"):
        fit_vector_map(kind, new[:0], old[:0], labels[:0])
    lengths = np.linspace(0.5, 2, len(new))[:, None]
    for same in (new[:1] * lengths, torch.zeros(new.shape)):
        with pytest.raises(UserError, match="all rows of new have the same direction"):
            fit_vector_map(kind, same, old, labels)
    with pytest.raises(UserError, match="all rows of old have the same direction"):
        fit_vector_map(kind, new, old[:1] * lengths, labels)
    with pytest.raises(UserError, match="all rows of new have the same direction"):
        fit_vector_map(kind, new[:1], old[:1], labels[:1])


def test_rows_that_differ_late_are_different_rows(monkeypatch):
    monkeypatch.setattr("unibct.maps.vector_map._BLOCK", 2)
    new = np.ones((5, 2))
    new[4, 1] = 2
    assert np.isfinite(fit_vector_map("affine", new, np.eye(5, 2), np.arange(5))(new)).all()


def test_a_single_vector_is_refused_in_one_line():
    new, old, labels = case()
    with pytest.raises(UserError, match=r"embeddings must have the shape \(rows, dim\)"):
        fit_vector_map("linear", new, old, labels)(torch.zeros(6))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAPS)
def test_a_map_is_made_again_from_its_tensors(kind):
    new, old, labels = case()
    vector_map = fit_vector_map(kind, new, old, labels)
    again = VectorMap.of_tensors(kind, vector_map.tensors())
    assert np.array_equal(again(new), vector_map(new))
    assert again.new_dim == 6
    with pytest.raises(UserError, match="takes embeddings of dimension 6, not 5"):
        again(new[:, :5])
