"""Random changes to training images: drawn from a seeded generator, then applied to a batch."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, fit

_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class Changes:
    """The random changes to apply to each image of a batch. None means that kind is off."""

    # (batch, 3) the largest shift s, then the shift down and to the right plus s: from 0 to 2s.
    shift: NDArray[np.int64] | None = None
    # (batch, 3) the share of the area to keep, then where that part lies down and to the right,
    # each from 0 to 1.
    crop: NDArray[np.float64] | None = None
    colour: NDArray[np.float64] | None = None  # (batch, 3) brightness, contrast, saturation
    flipped: NDArray[np.bool_] | None = None  # (batch,) whether an image is mirrored

    def part(self, rows: slice) -> "Changes":
        """Return the changes for some rows of the batch."""
        drawn: dict[str, Any] = vars(self)
        return Changes(**{k: None if v is None else v[rows] for k, v in drawn.items()})


def drawn_changes(
    count: int,
    rng: np.random.Generator,
    *,
    shift: int = 0,
    flip: bool = False,
    crop: float = 0.0,
    colour: float = 0.0,
) -> Changes:
    """Draw random changes for each of ``count`` images; the options are those of a ``Recipe``.

    An image moves by up to ``shift`` pixels in both directions, is mirrored with probability one
    half, loses up to the share ``crop`` of its area and is stretched to the full size, and has its
    brightness, contrast and saturation multiplied by 1 ± up to ``colour``.
    """
    moves = crops = colours = flipped = None
    if shift:
        moves = np.stack([np.full(count, shift), *rng.integers(0, 2 * shift + 1, (2, count))], 1)
    if crop:
        crops = rng.random((count, 3))
        crops[:, 0] = 1 - crop * crops[:, 0]
    if colour:
        colours = rng.uniform(1 - colour, 1 + colour, (3, count)).T
    if flip:
        flipped = rng.random(count) < 0.5
    return Changes(moves, crops, colours, flipped)


def changed(pixels: Pixels, changes: Changes) -> Pixels:
    """Return a (batch, height, width, channels) array with the changes applied.

    The input is not modified. Without any change it is returned as it is.
    """
    if changes.shift is not None:
        pixels = _shifted(pixels, changes.shift)
    if changes.crop is not None:
        pixels = _cropped(pixels, changes.crop)
    if changes.colour is not None:
        pixels = _recoloured(pixels, changes.colour)
    if changes.flipped is not None:
        pixels = np.where(changes.flipped[:, None, None, None], mirrored(pixels), pixels)
    return pixels


def mirrored(pixels: Pixels) -> Pixels:
    """Return a view of (batch, height, width, channels) with left and right swapped."""
    return pixels[:, :, ::-1]


def _shifted(pixels: Pixels, moves: NDArray[np.int64]) -> Pixels:
    """Move each image, and repeat its border where it moves away from it."""
    if not len(pixels):
        return pixels
    border = (int(moves[0, 0]),) * 2
    padded = np.pad(pixels, ((0, 0), border, border, (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, pixels.shape[1:3], axis=(1, 2))
    return windows[np.arange(len(pixels)), moves[:, 1], moves[:, 2]].transpose(0, 2, 3, 1)


def _cropped(pixels: Pixels, crops: NDArray[np.float64]) -> Pixels:
    """Cut a part out of each image and stretch it to the full size."""
    height, width = pixels.shape[1:3]
    result = np.empty_like(pixels)
    for number, (image, (area, down, right)) in enumerate(zip(pixels, crops.tolist(), strict=True)):
        side = math.sqrt(area)
        rows, columns = max(round(height * side), 1), max(round(width * side), 1)
        top = int(down * (height - rows + 1))
        left = int(right * (width - columns + 1))
        result[number] = fit(image[top : top + rows, left : left + columns], *image.shape)
    return result


def _recoloured(pixels: Pixels, factors: NDArray[np.float64]) -> Pixels:
    """Multiply brightness, contrast and, for colour images, saturation."""
    brightness, contrast, saturation = factors.astype(np.float32).T[:, :, None, None, None]
    values = pixels.astype(np.float32) * brightness
    mean = values.mean(axis=(1, 2, 3), keepdims=True)
    values = mean + (values - mean) * contrast
    if pixels.shape[3] == 3:
        grey = (values @ _GREY)[..., None]
        values = grey + (values - grey) * saturation
    return values.round().clip(0, 255).astype(np.uint8)
