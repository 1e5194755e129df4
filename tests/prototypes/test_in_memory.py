import numpy as np
import pytest
import torch

from tests.prototypes.class_data import classes_in, naive_refined, unit
from unibct.prototypes.in_memory import grouped_prototypes
from unibct.prototypes.inputs import PrototypeSettings


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_grouped_and_ordered_rows_give_the_naive_prototypes(dtype):
    sizes = np.array([2, 1, 9])
    v, x, labels = classes_in("shuffled", sizes)
    old, new = torch.from_numpy(v).to(dtype), torch.from_numpy(x).to(dtype)
    settings = PrototypeSettings("structural", tau=0.1, lam=0.8)
    order, counts = np.argsort(labels, kind="stable"), []
    ours = grouped_prototypes(
        old, sizes, new=new, settings=settings, order=order, advance=counts.append
    )
    grouped = grouped_prototypes(old[order], sizes, new=new[order], settings=settings)
    assert torch.equal(ours, grouped)
    assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert sum(counts) == 12
    for c in range(3):
        rows = labels == c
        naive = naive_refined(old[rows].numpy(), new[rows].numpy(), tau=0.1, lam=0.8)
        assert np.abs(ours[c].numpy() - naive / np.linalg.norm(naive)).max() < 1e-5


def test_a_centroid_is_the_mean_of_the_normalised_rows():
    sizes = np.array([4, 3])
    v, _, labels = classes_in("class", sizes)
    old = torch.from_numpy(v)
    ours = grouped_prototypes(old, sizes, new=old, settings=PrototypeSettings("centroid"))
    means = np.stack([unit(v[labels == c]).mean(axis=0) for c in range(2)])
    assert np.abs(ours.numpy() - unit(means)).max() < 1e-6
