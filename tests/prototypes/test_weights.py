import numpy as np
import pytest
import torch

import unibct
from tests.prototypes.class_data import classes_of, unit
from unibct.prototypes.weights import TILE, drop_weights, moved_apart, structural_weights


def test_weights_are_positive_sum_to_one_and_give_the_prototype():
    v, x, labels = classes_of([1, 2, 5, 30])
    w = structural_weights(x, labels)
    assert (w > 0).all()
    assert np.allclose(np.bincount(labels, weights=w), 1)
    sums = np.stack([(w[:, None] * unit(v))[labels == c].sum(axis=0) for c in range(4)])
    assert np.allclose(unit(sums), unibct.class_prototypes(labels, old=v, new=x), atol=1e-6)


def test_an_outlier_of_the_new_space_counts_less():
    rng = np.random.default_rng(0)
    x = np.r_[np.ones((9, 8)) + 0.1 * rng.normal(size=(9, 8)), -np.ones((1, 8))]
    w = structural_weights(x, np.zeros(10, dtype=int))
    assert w[-1] < 0.5 * w[:-1].min()


@pytest.mark.slow
def test_a_large_class_needs_no_copy_of_its_rows(monkeypatch):
    m, dim = 5000, 256
    x = np.random.default_rng(0).normal(size=(m, dim)).astype(np.float32) + 0.5
    x, labels = torch.from_numpy(x), np.zeros(m, dtype=int)
    shapes, real = [], torch.Tensor.__getitem__

    def spy(tensor, key):
        result = real(tensor, key)
        if result.data_ptr() != tensor.data_ptr() and result.ndim >= 2:
            shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(torch.Tensor, "__getitem__", spy)
    w = structural_weights(x, labels, tau=0.2)
    monkeypatch.undo()
    assert shapes, "rows are gathered in tiles"
    assert all(np.prod(shape) <= 1024 * dim for shape in shapes if shape[-1] == dim)
    # w solves w = λẼᵀw + (1−λ)/m, whose only solution it is.
    unit_x = torch.nn.functional.normalize(x, dim=1)
    edges = torch.softmax((unit_x @ unit_x.T / 0.2).fill_diagonal_(-torch.inf), dim=1)
    residual = 0.9 * edges.T @ w + 0.1 / m - w
    assert float(residual.abs().sum()) < 3e-6
    assert float(w.std() * m) > 0.01, "the graph matters"


def test_drop_weighs_the_farthest_with_zero():
    # Nine copies of one direction and an outlier: the outlier goes, the rest average.
    v = np.r_[np.tile([[1.0, 0.0]], (9, 1)), [[0.0, 1.0]]]
    labels = np.zeros(10, dtype=int)
    assert np.allclose(drop_weights(v, labels), [1 / 9] * 9 + [0])
    # Below ten images nothing is dropped: floor(0.1 · 9) = 0.
    assert np.allclose(drop_weights(v[1:], labels[1:]), 1 / 9)


def test_weights_are_of_the_kind_of_the_embeddings():
    v, x, labels = classes_of([3, 12])
    for weigh, vectors in ((structural_weights, x), (drop_weights, v)):
        array, tensor = weigh(vectors, labels), weigh(torch.from_numpy(vectors), labels)
        assert isinstance(array, np.ndarray)
        assert isinstance(tensor, torch.Tensor)
        assert np.array_equal(array, tensor.numpy())


def naive_moved_apart(p, rows, neighbours, step):
    p = unit(p)
    moved = []
    for i in rows:
        cosines = {j: float(p[i] @ p[j]) for j in range(len(p)) if j != i}
        nearest = sorted(cosines, key=cosines.get, reverse=True)[:neighbours]
        total = sum(np.exp(cosines[j]) for j in nearest)
        push = sum(np.exp(cosines[j]) / total * (p[i] - p[j]) for j in nearest)
        moved.append(p[i] + step * push)
    return unit(np.array(moved))


@pytest.mark.parametrize(("neighbours", "step"), [(5, 0.5), (1, 0.5), (3, 2.0), (50, 0.1)])
def test_moved_apart_equals_a_naive_loop(neighbours, step):
    p = np.random.default_rng(0).normal(size=(9, 4))
    ours = moved_apart(p, neighbours=neighbours, step=step)
    assert np.allclose(ours, naive_moved_apart(p, range(9), neighbours, step), atol=1e-12)


def test_moved_apart_of_more_classes_than_a_tile():
    p = np.random.default_rng(0).normal(size=(1500, 4))
    assert len(p) > TILE
    rows = [0, 1, 1023, 1024, 1025, 1499]
    assert np.allclose(moved_apart(p)[rows], naive_moved_apart(p, rows, 5, 0.5), atol=1e-9)


def test_close_prototypes_end_farther_apart():
    p = np.eye(6)
    p[1] = p[0] + 0.1 * p[1]
    moved = moved_apart(p)
    before, after = (np.arccos(rows[0] @ rows[1]) for rows in (unit(p), moved))
    assert after > 1.2 * before
    assert np.allclose(np.linalg.norm(moved, axis=1), 1)


def test_moved_apart_by_nobody_and_kinds_of_arrays():
    assert np.allclose(moved_apart(np.array([[3.0, 4.0]])), [[0.6, 0.8]])
    p = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    ours = moved_apart(p)
    assert isinstance(ours, torch.Tensor)
    assert ours.dtype == torch.float32
    assert np.allclose(ours.numpy(), moved_apart(p.numpy()), atol=1e-6)
