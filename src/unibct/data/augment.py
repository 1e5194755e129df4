"""Random changes of training images, drawn from a seeded generator."""

import numpy as np

from unibct.data.images import Pixels


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
