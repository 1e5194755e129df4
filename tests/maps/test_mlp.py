import numpy as np
import pytest
import torch

from tests.maps.cases import case, rotation
from unibct.maps.vector_map import fit_vector_map


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
        adapted = fit_vector_map(kind, new[:1000], old[:1000], labels[:1000])(new[1000:])
        mean[kind] = (adapted * old[1000:]).sum(axis=1).mean()
    assert mean["mlp"] > 0.9
    assert mean["linear"] < 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("short_maps")
def test_same_seed_same_mlp_whatever_the_global_state():
    new, old, labels = case()

    def fitted(seed):
        return fit_vector_map("mlp", new, old, labels, seed=seed)(new)

    torch.manual_seed(1)
    first, state = fitted(3), torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(1).get_state()), "and leaves it as it was"
    torch.manual_seed(2)
    assert np.array_equal(fitted(3), first)
    assert not np.allclose(fitted(4), first, atol=1e-3)
