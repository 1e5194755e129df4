"""Random changes of training images, drawn from a seeded generator."""

import math

import numpy as np
from numpy.typing import NDArray

from unibct.data.images import Pixels, fit

_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def augmented(
    pixels: Pixels,
    rng: np.random.Generator,
    *,
    shift: int = 0,
    flip: bool = False,
    crop: float = 0.0,
    colour: float = 0.0,
    low_resolution: float = 0.0,
) -> tuple[Pixels, NDArray[np.bool_] | None]:
    """A batch with random changes, and which of its images are mirrored (None: flip is off).

    Args:
        pixels: (batch, height, width, channels); left as they are.
        rng: where every change is drawn from.
        shift: see ``shifted``.
        flip: mirror each image with probability one half.
        crop: see ``cropped``.
        colour: see ``recoloured``.
        low_resolution: see ``blurred``.
    """
    pixels = shifted(pixels, shift, rng)
    if crop:
        pixels = cropped(pixels, crop, rng)
    if low_resolution:
        pixels = blurred(pixels, low_resolution, rng)
    if colour:
        pixels = recoloured(pixels, colour, rng)
    if not flip:
        return pixels, None
    chosen = rng.random(len(pixels)) < 0.5
    return np.where(chosen[:, None, None, None], mirrored(pixels), pixels), chosen


def mirrored(pixels: Pixels) -> Pixels:
    """Every image of a batch, left and right exchanged."""
    return pixels[:, :, ::-1]


def cropped(pixels: Pixels, most: float, rng: np.random.Generator) -> Pixels:
    """A random part of each image, stretched to its size; up to ``most`` of the area is cut off."""
    height, width = pixels.shape[1:3]
    result = np.empty_like(pixels)
    for number, image in enumerate(pixels):
        side = math.sqrt(1 - most * rng.random())
        rows, columns = max(round(height * side), 1), max(round(width * side), 1)
        top = int(rng.random() * (height - rows + 1))
        left = int(rng.random() * (width - columns + 1))
        result[number] = fit(image[top : top + rows, left : left + columns], *image.shape)
    return result


def blurred(pixels: Pixels, share: float, rng: np.random.Generator) -> Pixels:
    """A random ``share`` of the images, shrunk to between a fifth and their size, and enlarged."""
    height, width, channels = pixels.shape[1:]
    result = pixels.copy()
    for number in np.flatnonzero(rng.random(len(pixels)) < share):
        scale = rng.uniform(0.2, 1.0)
        small = (max(round(height * scale), 1), max(round(width * scale), 1), channels)
        result[number] = fit(fit(pixels[number], *small), height, width, channels)
    return result


def recoloured(pixels: Pixels, most: float, rng: np.random.Generator) -> Pixels:
    """Brightness, contrast and saturation of each image times 1 ± up to ``most``."""
    brightness, contrast, saturation = rng.uniform(1 - most, 1 + most, (3, len(pixels), 1, 1, 1))
    values = pixels.astype(np.float32) * brightness.astype(np.float32)
    mean = values.mean(axis=(1, 2, 3), keepdims=True)
    values = mean + (values - mean) * contrast.astype(np.float32)
    if pixels.shape[3] == 3:
        grey = values @ _GREY
        values = grey[..., None] + (values - grey[..., None]) * saturation.astype(np.float32)
    return values.round().clip(0, 255).astype(np.uint8)


def shifted(pixels: Pixels, most: int, rng: np.random.Generator) -> Pixels:
    """Each image moved by up to ``most`` pixels in both directions, its border repeated.

    Args:
        pixels: (batch, height, width, channels).
        most: largest shift; 0 leaves the images as they are.
        rng: where the shifts are drawn from.
    """
    if most == 0:
        return pixels
    batch, height, width, _ = pixels.shape
    padded = np.pad(pixels, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    down, right = rng.integers(0, 2 * most + 1, size=(2, batch))
    return windows[np.arange(batch), down, right].transpose(0, 2, 3, 1)
