import numpy as np
import pytest
import torch

from unibct.arrays import (
    checked_embeddings,
    checked_labels,
    is_array,
    is_tensor,
    normalized,
    readonly_tensor,
    require_contiguous_labels,
    require_same_dim,
    same_kind,
    to_numpy,
)
from unibct.errors import UserError


def test_kinds_are_told_apart():
    assert is_tensor(torch.zeros(2))
    assert not is_tensor(np.zeros(2))
    assert is_array(torch.zeros(2))
    assert is_array(np.zeros(2))
    assert not is_array([0.0])


def test_to_numpy_copies_only_what_it_must():
    array = np.arange(3.0)
    assert to_numpy(array) is array
    tensor = torch.arange(3.0, requires_grad=True)
    assert np.shares_memory(to_numpy(tensor), tensor.detach().numpy())
    assert to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert to_numpy([1, 2]).tolist() == [1, 2]


@pytest.mark.filterwarnings("error")
def test_a_read_only_array_becomes_a_tensor_without_a_warning():
    array = np.arange(3.0)
    array.flags.writeable = False
    assert readonly_tensor(array).tolist() == [0, 1, 2]


def test_the_result_has_the_kind_of_the_example():
    assert isinstance(same_kind(np.zeros(2), torch.zeros(1)), torch.Tensor)
    assert isinstance(same_kind(torch.zeros(2), np.zeros(1)), np.ndarray)
    assert isinstance(same_kind(torch.zeros(2), [0.0]), np.ndarray)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_embeddings_keep_their_precision(dtype):
    embeddings = checked_embeddings(np.ones((4, 6), dtype)[:, ::2], "query")
    assert (embeddings.shape, embeddings.dtype) == ((4, 3), dtype)
    assert embeddings.flags.c_contiguous


def test_embeddings_are_made_fit_for_torch():
    big_endian = np.arange(6, dtype=">f4").reshape(2, 3)
    native = checked_embeddings(big_endian, "query")
    assert native.dtype.isnative
    assert np.array_equal(native, big_endian)
    assert checked_embeddings(np.ones((2, 2), np.longdouble), "query").dtype == np.float64


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3), r"query must have the shape \(rows, dim\), not \(3,\)"),
        (np.zeros((3, 0)), "query must have the shape"),
        (np.zeros((3, 2), int), "query must be floating point, not int64"),
        (np.array([[0.0], [np.nan], [np.inf]]), "query has NaN or infinite values, first in row 1"),
    ],
)
def test_bad_embeddings_are_named(value, message):
    with pytest.raises(UserError, match=message):
        checked_embeddings(value, "query")


def test_labels():
    labels = checked_labels(np.array([1, 0], dtype=np.uint8), rows=2)
    assert labels.dtype == np.int64
    assert checked_labels([]).dtype == np.int64
    with pytest.raises(UserError, match=r"labels must have the shape \(rows,\), not \(1, 2\)"):
        checked_labels([[0, 1]])
    with pytest.raises(UserError, match="labels must be integers, not float64"):
        checked_labels([0.0])
    with pytest.raises(
        UserError, match=r"must be integers, not <U3; np\.unique\(names, return_inv"
    ):
        checked_labels(["ann", "bob"])
    with pytest.raises(UserError, match="ids has 2 entries, but there are 3 rows"):
        checked_labels([0, 1], rows=3, name="ids")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "labels is empty"),
        ([0, -2], "the negative value -2"),
        ([0, 10**9], "the value 1000000000; labels are 0…C-1, without gaps"),
        ([0, 3, 1], "no image has label 2, though the largest label is 3; number the classes"),
    ],
)
def test_labels_with_gaps_are_refused(labels, message):
    with pytest.raises(UserError, match=message):
        require_contiguous_labels(np.array(labels, dtype=np.int64))


def test_labels_without_gaps_are_counted():
    assert require_contiguous_labels(np.array([2, 0, 1, 1])) == 3


def test_dimensions_must_be_the_same():
    require_same_dim(np.zeros((1, 4)), "query", np.zeros((9, 4)), "gallery")
    with pytest.raises(UserError, match="query has dimension 4 but gallery has dimension 5"):
        require_same_dim(np.zeros((1, 4)), "query", np.zeros((9, 5)), "gallery")


def test_rows_are_scaled_to_length_1():
    rows = normalized(np.array([[3, 4], [0, 0], [3e30, 4e30], [3e-30, 4e-30]], dtype=np.float32))
    assert rows.dtype == np.float32
    assert np.allclose(rows, [[0.6, 0.8], [0, 0], [0.6, 0.8], [0.6, 0.8]])
    assert normalized(np.ones((1, 2), np.float16)).dtype == np.float32
