"""Reader of the embedded image set: classes are characters, images show them in typefaces.

The images are renderings, not photographs. ``glyphs.npz`` holds the parts for training, validation
and test, ``glyphs_final.npz`` the part ``final``: other characters, in other typefaces. The scripts
``make_glyphs.py`` and ``make_glyphs_final.py`` make them; ``glyphs_typefaces.csv`` and
``glyphs_final_typefaces.csv`` record the origin and licence of each typeface.
"""

import functools
import importlib.resources
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet
from unibct.errors import UserError

PARTS = ("train", "val", "test", "final")
MAIN_FILE = "glyphs.npz"  # the first three parts
FINAL_FILE = "glyphs_final.npz"
SIDE = 32
WHITE_LEVEL = 15  # the file stores 16 grey levels, two pixels per byte


def recognises(name: str) -> bool:
    """Return whether ``name`` is the embedded set, without a part."""
    return name == "glyphs"


def read(part: str) -> ImageSet:
    """Return the part ``train``, ``val``, ``test`` or ``final``.

    The parts have no class in common. ``final`` has no typeface in common with the others either.
    """
    name = f"glyphs:{part}"
    if part not in PARTS:
        raise UserError(f"{name}: say which part, {', '.join(f'glyphs:{p}' for p in PARTS)}")
    glyphs = load_glyph_file(FINAL_FILE if part == "final" else MAIN_FILE)
    rows = np.flatnonzero(glyphs.parts[glyphs.labels] == PARTS.index(part))
    file_labels, labels = np.unique(glyphs.labels[rows], return_inverse=True)
    ids = tuple(
        f"{glyphs.class_names[glyphs.labels[row]]}/{glyphs.typeface_names[glyphs.typefaces[row]]}"
        for row in rows
    )
    pixels = {image_id: glyphs.images[row] for image_id, row in zip(ids, rows, strict=True)}
    class_names = tuple(glyphs.class_names[int(label)] for label in file_labels)
    return ImageSet(name, ids, labels.astype(np.int64), class_names, pixels.__getitem__)


@dataclass(frozen=True)
class GlyphFile:
    """The content of a file: an image for each class and each typeface that has the character."""

    images: NDArray[np.uint8]  # (n, 32, 32), black (0) on white (255), by class, then by typeface
    labels: NDArray[np.int64]  # (n,) the class of each image, ascending from 0
    typefaces: NDArray[np.int64]  # (n,) indices into ``typeface_names``
    class_names: tuple[str, ...]  # code points: "U+0041"; the lowest of several that look alike
    typeface_names: tuple[str, ...]  # such as "inter-tight"
    parts: NDArray[np.int8]  # (classes,) indices into ``PARTS``


@functools.cache
def load_glyph_file(name: str) -> GlyphFile:
    """Load an embedded file; later calls return the same object. The arrays are read-only."""
    resource = importlib.resources.files("unibct.data.readers").joinpath(name)
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


def unpack_pixels(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert two 4-bit pixels per byte, (n, SIDE * SIDE / 2), to images 0…255, (n, SIDE, SIDE)."""
    images = np.empty((len(pixels), SIDE * SIDE), np.uint8)
    images[:, 0::2] = pixels >> 4
    images[:, 1::2] = pixels & 0x0F
    images *= 255 // WHITE_LEVEL
    return images.reshape(-1, SIDE, SIDE)
