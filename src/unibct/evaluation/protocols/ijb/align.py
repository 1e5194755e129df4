"""A face, by its five landmarks, in the published position."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import to_numpy
from unibct.errors import UserError

Pixels: TypeAlias = NDArray[np.uint8]
Reals: TypeAlias = NDArray[np.float64]

SIZE = 112
# Eyes, nose and the mouth's corners, x and y, in an image of 112 × 112.
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
    """The rotation, scale and shift that bring ``points`` nearest to ``target``.

    Least squares without reflection (Umeyama's). In the plane this is a regression of complex
    numbers: target ≈ factor · point + shift.

    Args:
        points: (n, 2) x and y.
        target: (n, 2).

    Returns:
        (2, 3), for columns (x, y, 1).
    """
    sources, targets = (_complex(value) for value in (points, target))
    if len(sources) != len(targets):
        raise UserError(f"there are {len(sources)} points but {len(targets)} targets")
    spread = sources - sources.mean()
    power = float(np.sum(np.abs(spread) ** 2))
    # Rounding leaves a trace of spread even where all points are equal.
    tiny = len(sources) * (np.finfo(np.float64).eps * np.abs(sources).max()) ** 2
    product = complex(np.sum(spread.conj() * (targets - targets.mean())))
    factor = product / power if power > tiny else 0j
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
    array = to_numpy(points).astype(np.float64)
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        raise UserError(f"points must have the shape (n, 2), not {array.shape}")
    if not np.isfinite(array).all():
        row = int((~np.isfinite(array).all(axis=1)).argmax())
        raise UserError(f"the landmarks have NaN or infinite values, first in point {row}")
    return array[:, 0] + 1j * array[:, 1]


def align(pixels: Any, points: Any, size: int = SIZE) -> Pixels:
    """The face of ``pixels``, its five ``points`` at the published places.

    Bilinear between pixel centres at whole coordinates (as OpenCV's ``warpAffine``, but without
    its rounding of positions to 1/32), zero outside of the image, rounded to the nearest.

    Args:
        pixels: (height, width, 3) or (height, width), uint8.
        points: (5, 2) x and y.
        size: side of the result; the published places are scaled with it.

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
    """(size, size, 3): the value at (x, y) is the image's at the inverse of ``matrix`` there.

    Args:
        image: (height, width, channels); one channel becomes three.
        matrix: (2, 3), from the image to the result.
        size: side of the result.
    """
    height, width, channels = image.shape
    back = np.linalg.inv(matrix[:, :2])
    steps = np.arange(size, dtype=np.float64)
    x, y = (
        (row[0] * (steps - matrix[0, 2])) + (row[1] * (steps - matrix[1, 2]))[:, None]
        for row in back
    )
    # A frame of zeros stands for all that is outside.
    framed = np.zeros((height + 3, width + 3, channels), dtype=np.uint8)
    framed[1:-2, 1:-2] = image
    flat = framed.reshape(-1, channels)
    column, right = _place(x, width)
    row, below = _place(y, height)
    corner = row * framed.shape[1] + column
    total = np.zeros((size * size, channels), dtype=np.float32)
    for step, weight in (
        (0, (1 - below) * (1 - right)),
        (1, (1 - below) * right),
        (framed.shape[1], below * (1 - right)),
        (framed.shape[1] + 1, below * right),
    ):
        total += flat.take(corner + step, axis=0) * weight[:, None]
    result = np.rint(total).astype(np.uint8).reshape(size, size, channels)
    return result if channels == 3 else np.repeat(result, 3, axis=2)


def _place(position: Reals, length: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The framed pixel before each position, and how far the position lies beyond it, 0…1."""
    position = np.minimum(np.maximum(position.ravel(), -1), length) + 1
    before = position.astype(np.intp)
    return before, (position - before).astype(np.float32)
