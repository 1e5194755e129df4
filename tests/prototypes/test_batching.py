import numpy as np
import torch

from unibct.prototypes.batching import (
    BATCH_ENTRIES,
    ReusedMemory,
    batches_of_like_size,
    take_rows,
    valid_rows,
)


def test_batches_hold_every_row_once_within_bounds():
    rng = np.random.default_rng(0)
    sizes = np.r_[rng.integers(1, 150, 40), 1, 900]
    order = rng.permutation(sizes.sum())
    labels = np.empty(len(order), dtype=int)
    labels[order] = np.repeat(np.arange(len(sizes)), sizes)
    seen = np.zeros(len(labels), dtype=int)
    for classes, rows in batches_of_like_size(sizes, 5000, order):
        for label, row in zip(classes, rows, strict=True):
            assert set(labels[row]) == {label}
            seen[row[: sizes[label]]] += 1
        assert rows.shape[1] == 1 or rows.shape[1] % 8 == 0
        assert len(rows) == 1 or rows.size * 5000 <= BATCH_ENTRIES
    assert (seen == 1).all()


def test_padding_is_not_valid():
    sizes = np.array([3, 8])
    (classes, rows), *others = batches_of_like_size(sizes, 4)
    assert not others
    assert rows[0].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    assert rows[1].tolist() == list(range(3, 11))
    valid = valid_rows(sizes[classes], rows, torch.empty(0))
    assert valid.sum(dim=1).tolist() == [3, 8]
    assert valid[0, :3].all()


def test_memory_is_used_again_and_grows():
    memory, example = ReusedMemory(), torch.empty(0, dtype=torch.float64)
    first = memory.empty("a", (4, 3), example)
    assert (first.shape, first.dtype) == ((4, 3), torch.float64)
    assert memory.empty("a", (2, 5), example).data_ptr() == first.data_ptr()
    assert memory.empty("b", (2, 5), example).data_ptr() != first.data_ptr()
    assert memory.empty("a", (5, 5), example).shape == (5, 5)
    assert memory.empty("c", (2,), example, torch.float32).dtype == torch.float32


def test_rows_are_taken_and_widened():
    vectors = torch.arange(12.0).view(6, 2)
    rows = np.array([[5, 0], [1, 1]])
    for dtype, wide in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
        taken = take_rows(vectors.to(dtype), rows, ReusedMemory())
        assert taken.dtype == wide
        assert taken.tolist() == vectors[rows].tolist()
