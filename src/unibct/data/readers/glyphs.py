"""Reader of the embedded image set: classes are characters, images show them in typefaces."""

import numpy as np

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.data.readers.embedded_glyphs import (
    FINAL_FILE,
    MAIN_FILE,
    PARTS,
    load_glyph_file,
)
from unibct.errors import UserError


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

    def read_image(image_id: str) -> Pixels:
        return pixels[image_id]

    class_names = tuple(glyphs.class_names[int(label)] for label in file_labels)
    return ImageSet(name, ids, labels.astype(np.int64), class_names, read_image)
