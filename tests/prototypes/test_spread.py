import numpy as np
import pytest
import torch

from tests.prototypes.class_data import unit
from unibct.prototypes.spread import TILE, moved_apart


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
