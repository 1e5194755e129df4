import numpy as np
import pytest
import torch

from unibct.errors import UserError
from unibct.prototypes.inputs import (
    BATCH_ENTRIES,
    PROTOTYPE_KINDS,
    ClassBatch,
    PrototypeSettings,
    ReusedMemory,
    batches_of_like_size,
    class_labels,
    float_tensor,
    require_same_rows,
    take_rows,
    valid_rows,
)

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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lam": 1.0}, "lam must be at least 0 and below 1"),
        ({"lam": -0.1}, "lam must be"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"tau": float("nan")}, "tau must be positive"),
        ({"tau": 1e-40}, "tau must be positive, 1e-30 or more, not 1e-40"),
        ({"kind": "median"}, "'median'.*; choose one of centroid, drop, structural"),
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
