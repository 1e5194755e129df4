"""Reader of ``.bin`` pair sets (LFW, CFP-FP, AgeDB-30): a pickle, opened by an allow-list.

The file is a pickle of 2N encoded images and N booleans. Nothing of it is ever executed: every
name it may ask for is answered by a stand-in below that makes bytes or a boolean, and any other
name is refused.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct.data.encoded_images import encoded_set
from unibct.data.image_set import ImageSet
from unibct.errors import UserError

SUFFIX = ".bin"


@dataclass(frozen=True)
class PairSet:
    """Pairs of images: the two of pair i are images 2i and 2i + 1.

    Attributes:
        images: all of them, each a class of its own (who they show is not known).
        same: (pairs,) whether the two show the same person.
    """

    images: ImageSet
    same: NDArray[np.bool_]


def read_pair_file(path: Path) -> PairSet:
    """The pairs of a ``.bin`` file, whichever Python wrote it."""
    try:
        with path.open("rb") as file:
            content = _AllowList(file, encoding="bytes").load()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{path} {error}") from error
    except Exception as error:  # whatever a damaged pickle makes the machine stumble over
        raise UserError(f"{path} is damaged, or no pair set: {error}") from error
    images, same = _checked(content, path)
    source = _Listed(images)
    ids = tuple(str(number) for number in range(len(images)))
    labels = np.arange(len(images), dtype=np.int64)
    return PairSet(encoded_set(str(path), ids, labels, ids, source), same)


@dataclass(frozen=True)
class _Listed:
    images: tuple[bytes, ...]

    def __call__(self, image_id: str) -> bytes:
        return self.images[int(image_id)]


def _checked(content: Any, path: Path) -> tuple[tuple[bytes, ...], NDArray[np.bool_]]:
    wanted = "2N encoded images and N booleans"
    if not isinstance(content, tuple | list) or len(cast(list[Any], content)) != 2:
        raise UserError(f"{path} is no pair set: it does not hold {wanted}")
    images, same = cast(list[Any], content)
    if not isinstance(images, list) or not isinstance(same, list):
        raise UserError(f"{path} is no pair set: it does not hold two lists, {wanted}")
    images, same = cast(list[Any], images), cast(list[Any], same)
    if not same or len(images) != 2 * len(same):
        raise UserError(
            f"{path} has {len(images)} images for {len(same)} pairs; a pair set has {wanted}"
        )
    found: list[bytes] = []
    for number, image in enumerate(images):
        data = image.content if isinstance(image, _Array) else image
        if not isinstance(data, bytes):
            raise UserError(f"{path}: image {number} is a {type(data).__name__}, not bytes")
        found.append(data)
    for number, value in enumerate(same):
        if not isinstance(value, bool | int) or value not in (0, 1):
            raise UserError(f"{path}: pair {number} says {value!r}, not True or False")
    return tuple(found), np.array(same, dtype=np.bool_)


class _Dtype:
    """Stands in for numpy.dtype: bytes or booleans only."""

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else str(name)
        if text not in ("u1", "b1"):
            raise UserError(f"holds a NumPy array of {text}; a pair set has bytes only")
        self.name = text

    def __setstate__(self, _: Any) -> None:
        """Byte order and the like: of no account for single bytes."""


class _Array:
    """Stands in for numpy.ndarray: an encoded image that was kept as an array of bytes."""

    content: bytes = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, content = state
        self.fill(content, dtype, shape)

    def fill(self, content: Any, dtype: Any, shape: Any) -> None:
        """Keep the bytes, if they are a row of as many as the shape says."""
        if not isinstance(dtype, _Dtype) or dtype.name != "u1" or len(shape) != 1:
            raise UserError("holds a NumPy array that is not a row of bytes")
        self.content = _as_bytes(content)
        if shape[0] != len(self.content):
            raise UserError(f"holds an array of {shape[0]} bytes with {len(self.content)} in it")


def _as_bytes(value: Any, *_: Any) -> bytes:
    """Stands in for _codecs.encode, by which protocol 2 writes bytes."""
    if isinstance(value, str):
        return value.encode("latin1")
    if not isinstance(value, bytes | bytearray):
        raise UserError(f"holds a {type(value).__name__} where bytes must be")
    return bytes(value)


def _scalar(dtype: Any, content: Any) -> bool:
    """Stands in for a NumPy scalar: a boolean."""
    if not isinstance(dtype, _Dtype) or dtype.name != "b1":
        raise UserError("holds a NumPy scalar that is not a boolean")
    return _as_bytes(content) != b"\0"


def _reconstruct(kind: Any, *_: Any) -> _Array:
    """Stands in for the first step of an array."""
    if kind is not _Array:
        raise UserError("holds a subclass of a NumPy array")
    return _Array()


def _from_buffer(content: Any, dtype: Any, shape: Any, *_: Any) -> _Array:
    """Stands in for the one step of an array since protocol 5."""
    array = _Array()
    array.fill(content, dtype, shape)
    return array


@dataclass(frozen=True)
class _StandIn:
    """A function that a pickle may call; a plain one it could alter as well."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __setstate__(self, _: Any) -> None:
        """Pickles set attributes by this."""
        raise UserError("alters what it asks for: refused")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _StandIn(_as_bytes),
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    **{
        (f"numpy.{core}.{name}", function): _StandIn(stand_in)
        for core in ("core", "_core")
        for name, function, stand_in in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _AllowList(pickle.Unpickler):
    """An unpickler that knows nothing but the stand-ins above."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """A stand-in, or a refusal."""
        found = _ALLOWED.get((module_name, global_name))
        if found is None:
            raise UserError(
                f"asks for {module_name}.{global_name}, which no pair set needs: refused"
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        """Nothing is stored elsewhere."""
        raise UserError("asks for an object outside the file: refused")
