"""Random changes of training images: drawn for a batch from a seeded generator, then made."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels, fit

_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class Changes:
    """What is to be changed in each image of a batch; None: no change of that kind.

    Attributes:
        shift: (batch, 3) the largest shift, and pixels down and to the right from −it.
        crop: (batch, 3) share of the area that stays, and where it lies, 0 to 1 each.
        resolution: (batch,) of the size to which an image is shrunk; 1 leaves it.
        colour: (batch, 3) factors of brightness, contrast and saturation.
        flipped: (batch,) whether it is mirrored.
    """

    shift: NDArray[np.int64] | None = None
    crop: NDArray[np.float64] | None = None
    resolution: NDArray[np.float64] | None = None
    colour: NDArray[np.float64] | None = None
    flipped: NDArray[np.bool_] | None = None

    def part(self, own: slice) -> "Changes":
        """Those of a part of the batch."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return Changes(**{k: None if v is None else v[own] for k, v in values.items()})


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
    """Draw what is changed in each of ``count`` images.

    Args:
        count: images of the batch.
        rng: where every change is drawn from.
        shift: move by up to so many pixels in both directions.
        flip: mirror each image with probability one half.
        crop: cut off up to this share of the area, and stretch the rest.
        colour: brightness, contrast and saturation times 1 ± up to this share.
        low_resolution: shrink this share of the images to between a fifth and their size, and
            enlarge them again.
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
    """(batch, height, width, channels) with these changes; the given pixels stay as they are."""
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
    """Every image of a batch, left and right exchanged."""
    return pixels[:, :, ::-1]


def _cropped(pixels: Pixels, drawn: NDArray[np.float64]) -> Pixels:
    height, width = pixels.shape[1:3]
    result = np.empty_like(pixels)
    for number, (image, (area, down, right)) in enumerate(zip(pixels, drawn.tolist(), strict=True)):
        side = math.sqrt(area)
        rows, columns = max(round(height * side), 1), max(round(width * side), 1)
        top = int(down * (height - rows + 1))
        left = int(right * (width - columns + 1))
        result[number] = fit(image[top : top + rows, left : left + columns], *image.shape)
    return result


def _blurred(pixels: Pixels, scales: NDArray[np.float64]) -> Pixels:
    height, width, channels = pixels.shape[1:]
    result = pixels.copy()
    for number in np.flatnonzero(scales < 1):
        scale = float(scales[number])
        small = (max(round(height * scale), 1), max(round(width * scale), 1), channels)
        result[number] = fit(fit(pixels[number], *small), height, width, channels)
    return result


def _recoloured(pixels: Pixels, factors: NDArray[np.float64]) -> Pixels:
    brightness, contrast, saturation = factors.astype(np.float32).T[:, :, None, None, None]
    values = pixels.astype(np.float32) * brightness
    mean = values.mean(axis=(1, 2, 3), keepdims=True)
    values = mean + (values - mean) * contrast
    if pixels.shape[3] == 3:
        grey = values @ _GREY
        values = grey[..., None] + (values - grey[..., None]) * saturation
    return values.round().clip(0, 255).astype(np.uint8)


def _shifted(pixels: Pixels, moves: NDArray[np.int64]) -> Pixels:
    """The border is repeated where an image moves away from it."""
    batch, height, width, _ = pixels.shape
    if not batch:
        return pixels
    most = int(moves[0, 0])
    padded = np.pad(pixels, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    return windows[np.arange(batch), moves[:, 1], moves[:, 2]].transpose(0, 2, 3, 1)
