"""Arrays in, arrays of the same kind out: NumPy or torch, checked on the way in."""

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


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor, without importing torch for those who do not use it."""
    torch_module = sys.modules.get("torch")
    return torch_module is not None and isinstance(value, torch_module.Tensor)


def is_array(value: object) -> bool:
    """Whether ``value`` is a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def to_numpy(value: object) -> NDArray[Any]:
    """A NumPy view of an array, a tensor or a sequence (a copy where it lies on a GPU)."""
    if is_tensor(value):
        tensor = cast("torch.Tensor", value).detach()
        if tensor.dtype.itemsize < 4 and tensor.dtype.is_floating_point:
            tensor = tensor.float()  # NumPy has no bfloat16
        return tensor.cpu().numpy()
    return np.asarray(value)


def readonly_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """A tensor on the same memory; torch's warning that it must not be written to is heeded."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def same_kind(result: Any, example: object) -> Any:
    """An array or tensor as the kind (and on the device) of ``example``."""
    if not is_tensor(example):
        return to_numpy(result)
    import torch

    return torch.as_tensor(result).to(cast("torch.Tensor", example).device)


def checked_embeddings(value: object, name: str) -> NDArray[np.floating[Any]]:
    """A finite (rows, dim) float array, or an error that names ``name`` and the first bad row."""
    array = to_numpy(value)
    if array.ndim != 2 or array.shape[1] == 0:
        raise UserError(f"{name} must have the shape (rows, dim), not {array.shape}")
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"{name} must be floating point, not {array.dtype}")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise UserError(f"{name} has NaN or infinite values, first in row {int(finite.argmin())}")
    # What torch takes too: contiguous, in the machine's byte order, at most double precision.
    narrow = array.dtype.itemsize <= 8
    native = np.dtype(array.dtype.newbyteorder("=") if narrow else np.float64)
    return np.ascontiguousarray(array, dtype=native)


def checked_labels(value: object, rows: int | None = None, name: str = "labels") -> NDArray[Any]:
    """A (rows,) int64 array, or an error that names ``name``."""
    array = to_numpy(value)
    if array.ndim != 1:
        raise UserError(f"{name} must have the shape (rows,), not {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"{name} must be integers, not {array.dtype}")
    if rows is not None and len(array) != rows:
        raise UserError(f"{name} has {len(array)} entries, but there are {rows} rows")
    return array.astype(np.int64, copy=False)


def require_contiguous_labels(labels: NDArray[np.int64], name: str = "labels") -> int:
    """The number of classes C of labels that use each of 0…C-1, or an error naming the gap."""
    if labels.size == 0:
        raise UserError(f"{name} is empty: at least one image is needed")
    if labels.min() < 0:
        raise UserError(f"{name} has the negative value {int(labels.min())}; labels are 0…C-1")
    if int(labels.max()) > 2 * len(labels) + 1_000_000:
        raise UserError(f"{name} has the value {int(labels.max())}; labels are 0…C-1, without gaps")
    sizes = np.bincount(labels)
    if (sizes == 0).any():
        gap = int((sizes == 0).argmax())
        raise UserError(
            f"{name} has a gap: no image has label {gap}, though the largest label is "
            f"{len(sizes) - 1}; number the classes 0…C-1 (numpy.unique(…, return_inverse=True))"
        )
    return len(sizes)


def require_same_dim(first: Any, first_name: str, second: Any, second_name: str) -> None:
    """Refuse two sets of embeddings whose dimensions differ."""
    if first.shape[1] != second.shape[1]:
        raise UserError(
            f"{first_name} has dimension {first.shape[1]} but {second_name} has dimension "
            f"{second.shape[1]}; they cannot be compared"
        )


def normalized(array: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Rows scaled to Euclidean length 1 (a row of zeros stays zero)."""
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    # Squares of large or small float32 values would overflow or vanish.
    lengths = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64))
    lengths = np.maximum(lengths, np.finfo(array.dtype).tiny).astype(array.dtype)
    return array / lengths[:, None]
