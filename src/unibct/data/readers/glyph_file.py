"""The embedded image set `glyphs`: characters (classes) drawn in real typefaces (images).

The images are renderings of type, not photographs. `scripts/make_glyphs.py` makes the file;
`glyphs_typefaces.csv` beside it records the origin and licence of each typeface.
"""

import functools
import importlib.resources
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PARTS = ("train", "val", "test")
SIDE = 32
WHITE_LEVEL = 15  # the file stores 16 grey levels, two pixels a byte


@dataclass(frozen=True)
class GlyphFile:
    """One image for each class and typeface that has it; the classes are split into parts.

    Attributes:
        images: (n, 32, 32), dark ink (0) on white paper (255), by class, then by typeface.
        labels: (n,), class of each image, ascending from 0.
        typefaces: (n,), index into `typeface_names` of each image.
        class_names: Code point of each class (the lowest, if characters look alike): "U+0041".
        typeface_names: Name of each typeface: "inter-tight".
        parts: (classes,), index into `PARTS` of each class.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    typefaces: NDArray[np.int64]
    class_names: tuple[str, ...]
    typeface_names: tuple[str, ...]
    parts: NDArray[np.int8]


def unpack_pixels(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turns two 4-bit pixels a byte, (n, SIDE * SIDE / 2), into images 0..255, (n, SIDE, SIDE)."""
    images = np.empty((len(pixels), SIDE * SIDE), np.uint8)
    images[:, 0::2] = pixels >> 4
    images[:, 1::2] = pixels & 0x0F
    images *= 255 // WHITE_LEVEL
    return images.reshape(-1, SIDE, SIDE)


@functools.cache
def load_glyph_file() -> GlyphFile:
    """Reads the embedded file once; the arrays are read-only."""
    resource = importlib.resources.files("unibct.data.readers").joinpath("glyphs.npz")
    with resource.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        glyphs = GlyphFile(
            images=unpack_pixels(arrays["pixels"]),
            labels=arrays["labels"].astype(np.int64),
            typefaces=arrays["typefaces"].astype(np.int64),
            class_names=tuple(f"U+{code_point:04X}" for code_point in arrays["code_points"]),
            typeface_names=tuple(str(name) for name in arrays["typeface_names"]),
            parts=arrays["parts"],
        )
    for array in (glyphs.images, glyphs.labels, glyphs.typefaces, glyphs.parts):
        array.flags.writeable = False
    return glyphs
