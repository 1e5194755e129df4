"""Reader of the embedded image set: characters (classes) in many typefaces (images)."""

import numpy as np

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.data.readers.glyph_file import PARTS, load_glyph_file
from unibct.errors import UserError


def read_glyphs(part: str) -> ImageSet:
    """``train``, ``val`` or ``test``: three sets of disjoint classes."""
    name = f"glyphs:{part}"
    if part not in PARTS:
        raise UserError(f"{name}: say which part, {', '.join(f'glyphs:{p}' for p in PARTS)}")
    file = load_glyph_file()
    rows = np.flatnonzero(file.parts[file.labels] == PARTS.index(part))
    kept, labels = np.unique(file.labels[rows], return_inverse=True)
    ids = tuple(
        f"{file.class_names[file.labels[row]]}/{file.typeface_names[file.typefaces[row]]}"
        for row in rows
    )
    pixels = {image_id: file.images[row] for image_id, row in zip(ids, rows, strict=True)}

    def read(image_id: str) -> Pixels:
        return pixels[image_id]

    class_names = tuple(file.class_names[int(c)] for c in kept)
    return ImageSet(name, ids, labels.astype(np.int64), class_names, read)
