"""Reader of ``.bin`` pair sets (LFW, CFP-FP, AgeDB-30), which are pickles.

The pickle contains 2N encoded images and N booleans. No code in it is ever run: each name that it
may refer to is replaced by a stand-in from this module, which makes bytes or a boolean. All other
names are refused.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet, encoded_set
from unibct.errors import UserError

SUFFIX = ".bin"


@dataclass(frozen=True)
class PairSet:
    """Pairs of images. Pair i consists of the images 2i and 2i + 1."""

    images: ImageSet  # each is a class of its own, because the persons are not known
    same: NDArray[np.bool_]  # (pairs,) whether the two images show the same person


def read_pair_file(path: Path) -> PairSet:
    """Return the pairs of a ``.bin`` file written by any version of Python."""
    try:
        with path.open("rb") as file:
            content = _AllowListUnpickler(file, encoding="bytes").load()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{path} {error}") from error
    except Exception as error:  # a damaged pickle can cause almost any exception
        raise UserError(f"{path} is damaged, or no pair set: {error}") from error
    images, same = _checked(content, path)
    ids = tuple(str(number) for number in range(len(images)))
    labels = np.arange(len(images), dtype=np.int64)
    by_id = dict(zip(ids, images, strict=True))
    return PairSet(encoded_set(str(path), ids, labels, ids, by_id.__getitem__), same)


def _checked(content: Any, path: Path) -> tuple[tuple[bytes, ...], NDArray[np.bool_]]:
    """Return the images and the booleans of a pair set, or raise an error if it is not one."""
    expected = "2N encoded images and N booleans"
    match content:
        case [images, _Array() as array]:
            same: Any = list(array.content)  # zeros and ones
        case [images, same]:
            pass
        case _:
            raise UserError(f"{path} is no pair set: it does not hold {expected}")
    if not isinstance(images, tuple | list) or not isinstance(same, tuple | list):
        raise UserError(f"{path} is no pair set: it does not hold two lists, {expected}")
    images, same = cast(list[Any], images), cast(list[Any], same)
    if not same or len(images) != 2 * len(same):
        raise UserError(
            f"{path} has {len(images)} images for {len(same)} pairs; a pair set has {expected}"
        )
    encoded_images: list[bytes] = []
    for number, image in enumerate(images):
        data = image.content if isinstance(image, _Array) else image
        if isinstance(image, _Array) and image.dtype != "u1":
            raise UserError(f"{path}: image {number} is an array of booleans, not bytes")
        if not isinstance(data, bytes):
            raise UserError(f"{path}: image {number} is a {type(data).__name__}, not bytes")
        encoded_images.append(data)
    for number, value in enumerate(same):
        if not isinstance(value, bool | int) or value not in (0, 1):
            raise UserError(f"{path}: pair {number} says {value!r}, not True or False")
    return tuple(encoded_images), np.array(same, dtype=np.bool_)


class _Dtype:
    """Stand-in for numpy.dtype: bytes or booleans only."""

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else str(name)
        if text not in ("u1", "b1"):
            raise UserError(f"holds a NumPy array of {text}; a pair set has bytes only")
        self.name = text

    def __setstate__(self, _: Any) -> None:
        """Ignore byte order and alignment, which do not matter for single bytes."""


class _Array:
    """Stand-in for numpy.ndarray: an encoded image as an array of bytes, or many booleans."""

    content: bytes = b""
    dtype: str = "u1"

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, content = state
        self.fill(content, dtype, shape)

    def fill(self, content: Any, dtype: Any, shape: Any) -> None:
        """Store the bytes. Refuse other types, tables of bytes and wrong lengths.

        Older versions of OpenCV store an image as a column, (n, 1).
        """
        long_sides = [size for size in shape if size != 1]
        if not isinstance(dtype, _Dtype) or not shape or len(long_sides) > 1:
            raise UserError("holds a NumPy array that is not a row of bytes")
        self.content, self.dtype = _as_bytes(content), dtype.name
        size = long_sides[0] if long_sides else 1
        if size != len(self.content):
            raise UserError(f"holds an array of {size} bytes with {len(self.content)} in it")


def _as_bytes(value: Any, *_: Any) -> bytes:
    """Stand-in for _codecs.encode, which protocol 2 uses for bytes."""
    if isinstance(value, str):
        return value.encode("latin1")
    if not isinstance(value, bytes | bytearray):
        raise UserError(f"holds a {type(value).__name__} where bytes must be")
    return bytes(value)


def _scalar(dtype: Any, content: Any) -> bool:
    """Stand-in for a NumPy scalar: a boolean."""
    if not isinstance(dtype, _Dtype) or dtype.name != "b1":
        raise UserError("holds a NumPy scalar that is not a boolean")
    return _as_bytes(content) != b"\0"


def _reconstruct(kind: Any, *_: Any) -> _Array:
    """Stand-in for the first step in which a pickle makes an array."""
    if kind is not _Array:
        raise UserError("holds a subclass of a NumPy array")
    return _Array()


def _from_buffer(content: Any, dtype: Any, shape: Any, *_: Any) -> _Array:
    """Stand-in for the single step in which a pickle of protocol 5 makes an array."""
    array = _Array()
    array.fill(content, dtype, shape)
    return array


@dataclass(frozen=True)
class _StandIn:
    """A function that a pickle may call but, unlike a plain function, not modify."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __setstate__(self, _: Any) -> None:
        """Refuse to set attributes, which pickles do through this method."""
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


class _AllowListUnpickler(pickle.Unpickler):
    """An unpickler that knows only the stand-ins in ``_ALLOWED``."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the stand-in for a name, or raise an error."""
        stand_in = _ALLOWED.get((module_name, global_name))
        if stand_in is None:
            raise UserError(
                f"asks for {module_name}.{global_name}, which no pair set needs: refused"
            )
        return stand_in

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to objects outside the file."""
        raise UserError("asks for an object outside the file: refused")
