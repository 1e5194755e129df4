"""Finished vectors as data: each row stands where an image would, with its id and class."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet, names_and_source, select_listed
from unibct.data.readers.table import open_images
from unibct.data.training_classes import UNKNOWN_SOURCE
from unibct.embeddings.checking import usable_embeddings
from unibct.embeddings.folder import Embeddings
from unibct.embeddings.forms.table import PREFIX, read_embeddings
from unibct.errors import UserError


@dataclass(frozen=True)
class _Reader:
    """Reads a row as an image of one row and as many columns as the vector has numbers."""

    embeddings: Embeddings
    position: dict[str, int]

    def __call__(self, image_id: str) -> Pixels:
        vector = np.asarray(self.embeddings.vectors[[self.position[image_id]]])
        return vector.reshape(1, -1, 1)  # pyright: ignore[reportReturnType]


def vector_set(embeddings: Embeddings, name: str) -> ImageSet:
    """Return embeddings as a set to train on, embed or evaluate with.

    Args:
        embeddings: with classes; rows of length 1.
        name: what the user called them, for messages.
    """
    if not embeddings.class_names:
        raise UserError(
            f"{name} has no classes: add a column `label`, or NAME.labels.txt beside NAME.npy"
        )
    used, labels = np.unique(embeddings.labels, return_inverse=True)
    position = {image_id: row for row, image_id in enumerate(embeddings.ids)}
    names, source = [embeddings.class_names[int(c)] for c in used], embeddings.class_source
    is_known = source not in (None, UNKNOWN_SOURCE)
    class_names, class_source = (tuple(names), source) if is_known else names_and_source(names)
    return ImageSet(
        name,
        embeddings.ids,
        labels.astype(np.int64),
        class_names,
        _Reader(embeddings, position),
        class_source=class_source,
        vector_dim=embeddings.vectors.shape[1],
        vectors_by=embeddings.training_classes,
    )


def open_data(name: str | Path, list_file: Path | None = None) -> ImageSet:
    """Open images, see ``open_images``, or finished vectors, ``embeddings:PATH``.

    Args:
        name: the path or the name of the set.
        list_file: a file with one id per line; the result has only these.
    """
    text = str(name)
    if not text.startswith(PREFIX) or Path(text).exists():
        return open_images(name, list_file)
    path = Path(text.removeprefix(PREFIX))
    rows = vector_set(usable_embeddings(read_embeddings(path), str(path)), text)
    return rows if list_file is None else select_listed(rows, list_file)


def training_data(
    data: str | None, from_embeddings: str | None, list_file: Path | None
) -> ImageSet:
    """Open what a model is trained on: images, or finished vectors.

    Args:
        data: the images; None with ``from_embeddings``.
        from_embeddings: the path of the vectors; None with ``data``.
        list_file: a file with one id per line; the result has only these.
    """
    if (data is None) == (from_embeddings is None):
        raise UserError("give DATA, the images, or --from-embeddings, finished vectors")
    return open_data(data if data is not None else f"{PREFIX}{from_embeddings}", list_file)
