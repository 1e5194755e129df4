from types import SimpleNamespace

import torch

from unibct.distributed.ranks import share_of
from unibct.training import class_weights


def test_class_weights_are_drawn_alike_for_any_ranks(monkeypatch):
    monkeypatch.setattr(class_weights, "_CHUNK", 16)
    whole = torch.randn(50, 8, generator=torch.Generator().manual_seed(3)) * 0.01
    for world in (1, 3):
        parts = [
            class_weights.initial_class_weights(50, 8, 3, share_of(50, rank, world))
            for rank in range(world)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_known_classes_get_the_old_weights_on_each_rank():
    old_weights = torch.arange(6.0).reshape(3, 2)
    old = SimpleNamespace(class_identities=("c", "a", "x"), class_weights=old_weights)
    names = ("a", "b", "c", "d")
    expected = torch.full((4, 2), -1.0)
    expected[0], expected[2] = old_weights[1], old_weights[0]
    for world in (1, 2):
        parts = []
        for rank in range(world):
            own_classes = share_of(4, rank, world)
            weights = torch.full((len(own_classes), 2), -1.0)
            class_weights.copy_known_classes(weights, names, own_classes, old)
            parts.append(weights)
        assert torch.equal(torch.cat(parts), expected)
    old.class_weights = None
    class_weights.copy_known_classes(weights, names, own_classes, old)
    assert torch.equal(weights, expected[2:])
