import dataclasses

import numpy as np
import pytest
import torch

from unibct.errors import UserError
from unibct.maps.space_map import KnownPairs, SpaceMap, checked_direction
from unibct.maps.vector_map import VectorMap


def small_map(direction="forward", matrix=None):
    matrix = torch.eye(3, 2) if matrix is None else matrix
    known = KnownPairs(("a",), np.ones((1, 3), np.float32), np.ones((1, 2), np.float32))
    return SpaceMap(
        VectorMap("linear", ((matrix, None),)), direction, "new model", "old model", known, 1.0
    )


def test_source_and_target_follow_the_direction():
    forward, backward = small_map(), small_map("backward")
    assert (forward.source, forward.target) == ("old model", "new model")
    assert (backward.source, backward.target) == ("new model", "old model")
    forward.require_source("old model", "x")
    with pytest.raises(UserError, match=r"x is in the space .* takes the old model's embeddings"):
        forward.require_source("new model", "x")
    with pytest.raises(UserError, match="takes embeddings by model new model only"):
        backward.require_source("another", "x")


def test_the_fingerprint_follows_everything_that_decides_the_rows():
    base = small_map()
    others = [
        small_map("backward"),
        small_map(matrix=2 * torch.eye(3, 2)),
        dataclasses.replace(base, new_model="other"),
        dataclasses.replace(base, old_model="other"),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert base.fingerprint == small_map().fingerprint


def test_unknown_directions_are_named():
    with pytest.raises(UserError, match="unknown direction 'up'; choose backward or forward"):
        checked_direction("up")
