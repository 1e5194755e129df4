"""Alignment: a similarity transform brings a face's five landmarks to their published places."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import to_numpy
from unibct.errors import UserError

Pixels: TypeAlias = NDArray[np.uint8]
Reals: TypeAlias = NDArray[np.float64]

SIZE = 112
# The published places of eyes, nose and mouth corners, x and y, in an image of 112 × 112.
TEMPLATE = np.array(
    [
        [38.2946, 51.6963],
        [73.5318, 51.5014],
        [56.0252, 71.7366],
        [41.5493, 92.3655],
        [70.7299, 92.2041],
    ]
)


def similarity(points: Any, target: Any) -> Reals:
    """Return the rotation, scale and shift that bring ``points`` nearest to ``target``.

    This is Umeyama's least-squares solution, without reflection. In the plane it is a regression
    of complex numbers: target ≈ factor · point + shift.

    Args:
        points: (n, 2) x and y.
        target: (n, 2) x and y.

    Returns:
        (2, 3) the matrix that is multiplied by a column (x, y, 1).
    """
    sources, targets = (_complex(value) for value in (points, target))
    if len(sources) != len(targets):
        raise UserError(f"there are {len(sources)} points but {len(targets)} targets")
    centred = sources - sources.mean()
    variation = float(np.sum(np.abs(centred) ** 2))
    # If all points are equal, rounding can still leave a tiny variation.
    rounding = len(sources) * (np.finfo(np.float64).eps * np.abs(sources).max()) ** 2
    product = complex(np.sum(centred.conj() * (targets - targets.mean())))
    factor = product / variation if variation > rounding else 0j
    if not abs(factor) > 0:
        raise UserError(
            f"the landmarks {np.asarray(points).round(1).tolist()} fix no position; "
            "detect the face again or leave out the image"
        )
    shift = complex(targets.mean() - factor * sources.mean())
    return np.array(
        [[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]]
    )


def _complex(points: Any) -> NDArray[np.complex128]:
    """Return (n,) x + iy of checked points."""
    array = to_numpy(points).astype(np.float64)
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        raise UserError(f"points must have the shape (n, 2), not {array.shape}")
    if not np.isfinite(array).all():
        row = int((~np.isfinite(array).all(axis=1)).argmax())
        raise UserError(f"the landmarks have NaN or infinite values, first in point {row}")
    return array[:, 0] + 1j * array[:, 1]


def align(pixels: Any, points: Any, size: int = SIZE) -> Pixels:
    """Return the face in ``pixels`` with its five ``points`` at the published places.

    Values are interpolated bilinearly, with pixel centres at whole coordinates as in OpenCV's
    ``warpAffine`` (which in addition rounds positions to 1/32), and rounded to the nearest
    integer. Outside the image they are zero.

    Args:
        pixels: (height, width, 3) or (height, width), uint8.
        points: (5, 2) x and y.
        size: height and width of the result; the published places are scaled with it.

    Returns:
        (size, size, 3).
    """
    image = to_numpy(pixels)
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.shape[2:] or (3,)) != (3,):
        raise UserError(
            f"an image must be uint8 of the shape (height, width, 3) or (height, width), "
            f"not {image.dtype} of the shape {image.shape}"
        )
    if not image.size:
        raise UserError("an image has no pixel; leave it out")
    matrix = similarity(points, TEMPLATE * (size / SIZE))
    return warp(np.atleast_3d(image), matrix, size)


def warp(image: Pixels, matrix: Reals, size: int) -> Pixels:
    """Transform an image: the result at (x, y) is the image at ``matrix``⁻¹ (x, y).

    Args:
        image: (height, width, channels); one channel becomes three.
        matrix: (2, 3), from the image to the result.
        size: height and width of the result.

    Returns:
        (size, size, 3).
    """
    height, width, channels = image.shape
    inverse = np.linalg.inv(matrix[:, :2])
    places = np.arange(size, dtype=np.float64)
    x, y = (
        (row[0] * (places - matrix[0, 2])) + (row[1] * (places - matrix[1, 2]))[:, None]
        for row in inverse
    )
    # A frame of zeros stands for everything outside the image.
    framed = np.zeros((height + 3, width + 3, channels), dtype=np.uint8)
    framed[1:-2, 1:-2] = image
    flat = framed.reshape(-1, channels)
    column, right = _pixel_and_rest(x, width)
    row, below = _pixel_and_rest(y, height)
    corner = row * framed.shape[1] + column
    total = np.zeros((size * size, channels), dtype=np.float32)
    for offset, weight in (
        (0, (1 - below) * (1 - right)),
        (1, (1 - below) * right),
        (framed.shape[1], below * (1 - right)),
        (framed.shape[1] + 1, below * right),
    ):
        total += flat.take(corner + offset, axis=0) * weight[:, None]
    result = np.rint(total).astype(np.uint8).reshape(size, size, channels)
    return result if channels == 3 else np.repeat(result, 3, axis=2)


def _pixel_and_rest(position: Reals, length: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the framed pixel before each position, and the distance from it, 0…1."""
    position = np.minimum(np.maximum(position.ravel(), -1), length) + 1
    before = position.astype(np.intp)
    return before, (position - before).astype(np.float32)
