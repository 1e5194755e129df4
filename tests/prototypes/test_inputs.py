import numpy as np
import pytest
import torch

from unibct.errors import UserError
from unibct.prototypes.inputs import (
    PrototypeSettings,
    class_labels,
    float_tensor,
    require_same_rows,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lam": 1.0}, "lam must be at least 0 and below 1"),
        ({"lam": -0.1}, "lam must be"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"tau": float("nan")}, "tau must be positive"),
        ({"tau": 1e-40}, "tau must be positive, 1e-30 or more, not 1e-40"),
        ({"kind": "median"}, "unknown kind of prototype 'median'"),
        ({"drop": 1.0}, "drop must be"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(UserError, match=message):
        PrototypeSettings(**change)


def test_tensors_share_memory_and_half_precision_is_widened():
    array = np.ones((2, 3), np.float32)
    assert float_tensor(array, "old").data_ptr() == array.ctypes.data
    tensor = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    assert float_tensor(tensor, "old").data_ptr() == tensor.data_ptr()
    assert not float_tensor(tensor, "old").requires_grad
    assert float_tensor(torch.ones(2, 3, dtype=torch.bfloat16), "old").dtype == torch.float32
    assert float_tensor(array.astype(np.float16), "old").dtype == torch.float32


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (torch.ones(3), r"old must be floating point of shape \(rows, dim\)"),
        (torch.ones(3, 2, dtype=torch.int64), "old must be floating point"),
        (torch.tensor([[0.0], [torch.nan]]), "old has NaN or infinite values, first in row 1"),
        (np.array([[0.0], [np.inf]]), "old has NaN or infinite values, first in row 1"),
    ],
)
def test_bad_embeddings_are_named(vectors, message):
    with pytest.raises(UserError, match=message):
        float_tensor(vectors, "old")


def test_labels_use_every_class_and_rows_agree():
    assert class_labels(torch.tensor([1, 0], dtype=torch.int32), 2).tolist() == [1, 0]
    with pytest.raises(UserError, match="gap: no image has label 1"):
        class_labels([0, 2], 2)
    require_same_rows(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(UserError, match="new has 1 rows but old has 2"):
        require_same_rows(np.ones((1, 3)), np.ones((2, 4)))
