"""Checks and conversions of NumPy arrays and torch tensors.

Public functions take either kind, and return the kind that they were given.
"""

import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int64]

_ROUNDING = 32  # in units of the last digit of 1; 11 were measured


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is a torch tensor. Does not import torch."""
    torch_module = sys.modules.get("torch")
    return torch_module is not None and isinstance(value, torch_module.Tensor)


def is_array(value: object) -> bool:
    """Return whether ``value`` is a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def to_numpy(value: object) -> NDArray[Any]:
    """Return an array, a tensor or a sequence as a NumPy array, without a copy if possible."""
    if is_tensor(value):
        tensor = cast("torch.Tensor", value).detach()
        if tensor.dtype.itemsize < 4 and tensor.dtype.is_floating_point:
            tensor = tensor.float()  # because NumPy has no bfloat16
        return tensor.cpu().numpy()
    return np.asarray(value)


def readonly_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """Return a tensor that shares the memory of a read-only array. Do not write to it."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def same_kind(result: Any, example: object) -> Any:
    """Return ``result`` as a tensor on the device of ``example``, or as NumPy if that is NumPy."""
    if not is_tensor(example):
        return to_numpy(result)
    import torch

    return torch.as_tensor(result).to(cast("torch.Tensor", example).device)


def checked_embeddings(value: object, name: str) -> NDArray[np.floating[Any]]:
    """Return ``value`` as a finite (rows, dim) float array; errors say ``name`` and the row."""
    array = to_numpy(value)
    if array.ndim != 2 or array.shape[1] == 0:
        raise UserError(f"{name} must have the shape (rows, dim), not {array.shape}")
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"{name} must be floating point, not {array.dtype}")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise UserError(f"{name} has NaN or infinite values, first in row {int(finite.argmin())}")
    # torch needs a contiguous array in native byte order, with at most double precision.
    fits_float64 = array.dtype.itemsize <= 8
    native_dtype = np.dtype(array.dtype.newbyteorder("=") if fits_float64 else np.float64)
    return np.ascontiguousarray(array, dtype=native_dtype)


def checked_labels(value: object, rows: int | None = None, name: str = "labels") -> NDArray[Any]:
    """Return ``value`` as a (rows,) int64 array; an error says ``name``."""
    array = to_numpy(value)
    if array.ndim != 1:
        raise UserError(f"{name} must have the shape (rows,), not {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        is_text = array.dtype.kind in "UO"
        hint = "; np.unique(names, return_inverse=True)[1] numbers names" if is_text else ""
        raise UserError(f"{name} must be integers, not {array.dtype}{hint}")
    if rows is not None and len(array) != rows:
        raise UserError(f"{name} has {len(array)} entries, but there are {rows} rows")
    return array.astype(np.int64, copy=False)


def require_contiguous_labels(labels: NDArray[np.int64], name: str = "labels") -> int:
    """Return the number of classes C; refuse labels that do not use each of 0…C-1."""
    if labels.size == 0:
        raise UserError(f"{name} is empty: at least one image is needed")
    if labels.min() < 0:
        raise UserError(f"{name} has the negative value {int(labels.min())}; labels are 0…C-1")
    if int(labels.max()) > 2 * len(labels) + 1_000_000:
        raise UserError(f"{name} has the value {int(labels.max())}; labels are 0…C-1, without gaps")
    class_sizes = np.bincount(labels)
    if (class_sizes == 0).any():
        gap = int((class_sizes == 0).argmax())
        raise UserError(
            f"{name} has a gap: no image has label {gap}, though the largest label is "
            f"{len(class_sizes) - 1}; "
            "number the classes 0…C-1 (numpy.unique(…, return_inverse=True))"
        )
    return len(class_sizes)


def require_same_dim(first: Any, first_name: str, second: Any, second_name: str) -> None:
    """Raise a ``UserError`` if two sets of embeddings have different dimensions."""
    if first.shape[1] != second.shape[1]:
        raise UserError(
            f"{first_name} has dimension {first.shape[1]} but {second_name} has dimension "
            f"{second.shape[1]}; they cannot be compared"
        )


def normalized(array: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return the (rows, dim) array with each row scaled to length 1. A row of zeros stays zero."""
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    # In float32 the squares of large or small values would overflow or become zero.
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64))
    lengths = np.maximum(lengths, np.finfo(array.dtype).tiny).astype(array.dtype)
    return array / lengths[:, None]


def lowered(mate_scores: Floats) -> Floats:
    """Return scores of mates a little lower, so that an impostor's equal score is never below.

    A matrix product does not round the cosine of the same two vectors alike in all its places.
    So without this a mate would beat every other copy of its own row by chance.
    """
    return mate_scores - _ROUNDING * np.finfo(mate_scores.dtype).eps
