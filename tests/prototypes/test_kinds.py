import numpy as np
import pytest
import torch

from unibct.errors import UserError
from unibct.prototypes.batching import ClassBatch, ReusedMemory
from unibct.prototypes.inputs import PrototypeSettings
from unibct.prototypes.kinds import PROTOTYPE_KINDS

OLD, NEW = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(3))


def weights(kind: str, old: torch.Tensor = OLD, new: torch.Tensor = NEW) -> torch.Tensor:
    rows = np.arange(8).reshape(2, 4)
    batch = ClassBatch(old, new, rows, torch.ones(2, 4, dtype=torch.bool), ReusedMemory())
    return PROTOTYPE_KINDS[kind].load()(batch, PrototypeSettings(kind, tau=0.5, drop=0.3))


@pytest.mark.parametrize("kind", PROTOTYPE_KINDS)
def test_the_weights_of_a_class_sum_to_1(kind):
    assert torch.allclose(weights(kind).sum(dim=1), torch.ones(2))


@pytest.mark.parametrize("kind", PROTOTYPE_KINDS)
def test_a_kind_depends_on_the_new_embeddings_only_if_it_says_so(kind):
    same = torch.equal(weights(kind), weights(kind, new=NEW.flip(0)))
    assert same != PROTOTYPE_KINDS[kind].needs_new
    assert PrototypeSettings(kind).needs_new == PROTOTYPE_KINDS[kind].needs_new


def test_an_unknown_kind_is_refused_with_the_names():
    with pytest.raises(UserError, match="choose one of centroid, drop, structural"):
        PrototypeSettings("median")
