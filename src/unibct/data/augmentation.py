"""Random changes to training images: drawn from a seeded generator, then applied to a batch."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, fit

_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class Changes:
    """The random changes to apply to each image of a batch. None means that kind is off.

    Attributes:
        shift: (batch, 3) the largest shift s, then the shift down and to the right plus s, so
            that both count from 0 to 2s.
        crop: (batch, 3) the share of the area to keep, then the vertical and the horizontal
            position of that part, each from 0 to 1.
        resolution: (batch,) the factor by which an image is shrunk before it is enlarged again;
            1 leaves it as it is.
        colour: (batch, 3) factors for brightness, contrast and saturation.
        flipped: (batch,) whether an image is mirrored.
    """

    shift: NDArray[np.int64] | None = None
    crop: NDArray[np.float64] | None = None
    resolution: NDArray[np.float64] | None = None
    colour: NDArray[np.float64] | None = None
    flipped: NDArray[np.bool_] | None = None

    def part(self, rows: slice) -> "Changes":
        """Return the changes for some rows of the batch."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return Changes(**{k: None if v is None else v[rows] for k, v in values.items()})


def drawn_changes(
    count: int,
    rng: np.random.Generator,
    *,
    shift: int = 0,
    flip: bool = False,
    crop: float = 0.0,
    colour: float = 0.0,
    low_resolution: float = 0.0,
) -> Changes:
    """Draw random changes for each image of a batch.

    Args:
        count: number of images in the batch.
        rng: the source of all random numbers.
        shift: move each image by up to this many pixels in both directions.
        flip: mirror each image with probability one half.
        crop: cut off up to this share of the area, and stretch the rest to the full size.
        colour: multiply brightness, contrast and saturation by 1 ± up to this share.
        low_resolution: shrink this share of the images to between 20 % and 100 % of their size,
            and enlarge them again.
    """
    moves = crops = resolution = colours = flipped = None
    if shift:
        moves = np.stack([np.full(count, shift), *rng.integers(0, 2 * shift + 1, (2, count))], 1)
    if crop:
        crops = rng.random((count, 3))
        crops[:, 0] = 1 - crop * crops[:, 0]
    if low_resolution:
        chosen = rng.random(count) < low_resolution
        resolution = np.ones(count)
        resolution[chosen] = rng.uniform(0.2, 1.0, int(chosen.sum()))
    if colour:
        colours = rng.uniform(1 - colour, 1 + colour, (3, count)).T
    if flip:
        flipped = rng.random(count) < 0.5
    return Changes(moves, crops, resolution, colours, flipped)


def changed(pixels: Pixels, changes: Changes) -> Pixels:
    """Return a (batch, height, width, channels) array with the changes applied.

    The input is not modified. Without any change it is returned as it is.
    """
    if changes.shift is not None:
        pixels = _shifted(pixels, changes.shift)
    if changes.crop is not None:
        pixels = _cropped(pixels, changes.crop)
    if changes.resolution is not None:
        pixels = _blurred(pixels, changes.resolution)
    if changes.colour is not None:
        pixels = _recoloured(pixels, changes.colour)
    if changes.flipped is not None:
        pixels = np.where(changes.flipped[:, None, None, None], mirrored(pixels), pixels)
    return pixels


def mirrored(pixels: Pixels) -> Pixels:
    """Return a view of (batch, height, width, channels) with left and right swapped."""
    return pixels[:, :, ::-1]


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


def _blurred(pixels: Pixels, scales: NDArray[np.float64]) -> Pixels:
    """Shrink the images whose scale is below 1, and enlarge them again."""
    height, width, channels = pixels.shape[1:]
    result = pixels.copy()
    for number in np.flatnonzero(scales < 1):
        scale = float(scales[number])
        small = (max(round(height * scale), 1), max(round(width * scale), 1), channels)
        result[number] = fit(fit(pixels[number], *small), height, width, channels)
    return result


def _recoloured(pixels: Pixels, factors: NDArray[np.float64]) -> Pixels:
    """Multiply brightness, contrast and, for colour images, saturation."""
    brightness, contrast, saturation = factors.astype(np.float32).T[:, :, None, None, None]
    values = pixels.astype(np.float32) * brightness
    mean = values.mean(axis=(1, 2, 3), keepdims=True)
    values = mean + (values - mean) * contrast
    if pixels.shape[3] == 3:
        grey = values @ _GREY
        values = grey[..., None] + (values - grey[..., None]) * saturation
    return values.round().clip(0, 255).astype(np.uint8)


def _shifted(pixels: Pixels, moves: NDArray[np.int64]) -> Pixels:
    """Move each image, and repeat its border where it moves away from it."""
    batch, height, width, _ = pixels.shape
    if not batch:
        return pixels
    largest_shift = int(moves[0, 0])
    border = (largest_shift, largest_shift)
    padded = np.pad(pixels, ((0, 0), border, border, (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    return windows[np.arange(batch), moves[:, 1], moves[:, 2]].transpose(0, 2, 3, 1)
