import math

import numpy as np
import pytest
import torch

from tests.methods.cases import SETTINGS, batch, knowledge, small_arcface
from unibct.methods.base import Settings
from unibct.methods.mixbct import MixBct


@pytest.mark.parametrize(("size", "drawn"), [(1, 0), (3, 0), (4, 1), (9, 2), (10, 3), (20, 6)])
def test_mixbct_replaces_three_tenths_of_a_batch(size, drawn):
    old, step = knowledge(), batch(range(size))
    nothing_dropped = Settings(scale=16.0, margin=0.3, tau=0.05, lam=0.9, drop=0.0)
    mixed = MixBct(old, nothing_dropped).classified(step)
    is_old = (mixed == old.embeddings[step.rows]).all(dim=1)
    is_new = (mixed == step.embeddings).all(dim=1)
    assert int(is_old.sum()) == drawn
    assert torch.equal(is_new, ~is_old)


def test_mixbct_never_takes_an_old_outlier():
    old, rng = knowledge(), np.random.default_rng(0)
    method = MixBct(old, SETTINGS)
    ever = torch.zeros(24, dtype=torch.bool)
    for _ in range(50):
        step = batch(range(24), rng=rng)
        replaced = (method.classified(step) != step.embeddings).any(dim=1)
        assert int(replaced.sum()) <= 7
        ever |= replaced
    # Of six images of a class, drop = 0.2 leaves out the one farthest from the mean.
    outliers = []
    for start in range(0, 24, 6):
        rows = old.embeddings[start : start + 6].tolist()
        mean = [sum(column) / 6 for column in zip(*rows, strict=True)]
        outliers.append(start + max(range(6), key=lambda i: math.dist(rows[i], mean)))
    assert (~ever).nonzero().flatten().tolist() == outliers


def test_mixbct_draws_from_the_batch_s_generator_alone():
    method = MixBct(knowledge(), SETTINGS)

    def mixed(seed):
        return method.classified(batch(range(24), rng=np.random.default_rng(seed)))

    assert torch.equal(mixed(3), mixed(3))
    assert not torch.equal(mixed(3), mixed(4))


def test_mixbct_trains_the_classifier_on_both_and_the_network_on_new_rows_only():
    step = batch(range(24))
    mixed = MixBct(knowledge(), SETTINGS).classified(step)
    replaced = (mixed != step.embeddings).any(dim=1)
    assert 0 < int(replaced.sum()) < 24
    of_old = small_arcface(mixed[replaced], step.class_weights, step.labels[replaced])
    (gradient,) = torch.autograd.grad(of_old, step.class_weights, retain_graph=True)
    assert float(gradient.abs().sum()) > 0
    small_arcface(mixed, step.class_weights, step.labels).backward()
    assert (step.embeddings.grad[replaced] == 0).all()
    assert (step.embeddings.grad[~replaced] != 0).any(dim=1).all()
