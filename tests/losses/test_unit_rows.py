import pytest
import torch

from unibct.losses.unit_rows import unit_rows


def test_rows_have_length_1():
    assert torch.allclose(unit_rows(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_becomes_single(dtype):
    rows = unit_rows(torch.ones(2, 3, dtype=dtype))
    assert rows.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(rows.norm(dim=1).float(), torch.ones(2))
