"""Stored embeddings: checked row by row, in place of a model, and as data to train on."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.arrays import normalized
from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet, names_and_source, select_listed
from unibct.data.readers import open_images
from unibct.data.training_classes import UNKNOWN_SOURCE, TrainingClasses
from unibct.embeddings.forms import PREFIX, read_embeddings
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError

BLOCK = 65_536  # rows that are looked at at a time
_UNIT_TOLERANCE = 2e-3  # of the length of a normalised row in half precision


def usable_embeddings(embeddings: Embeddings, name: str) -> Embeddings:
    """Check every row, and return the embeddings with rows of length 1 and a fingerprint.

    Rows that have length 1 already stay as they are, to the bit. Without a fingerprint of their
    model the embeddings get a digest of their ids and vectors. An error names the row and the id of
    a NaN, a row of zeros or a doubled id; ``name`` is what the user called the embeddings.
    """
    vectors = embeddings.vectors
    if not require_usable(embeddings, name):
        vectors = normalized(np.asarray(vectors)).astype(np.float32, copy=False)
    fingerprint = embeddings.fingerprint or content_fingerprint(embeddings)
    return embeddings.changed(vectors=vectors, fingerprint=fingerprint)


def require_usable(embeddings: Embeddings, name: str) -> bool:
    """Refuse what ``usable_embeddings`` refuses, and return whether all rows have length 1."""
    require_distinct_ids(embeddings.ids, name)
    all_unit = True
    for start in range(0, len(embeddings), BLOCK):
        lengths = checked_lengths(embeddings, start, name)
        all_unit = all_unit and bool((np.abs(lengths - 1) < _UNIT_TOLERANCE).all())
    return all_unit


def content_fingerprint(embeddings: Embeddings) -> str:
    """Return a digest of ids and vectors, for embeddings whose model is not known."""
    digest = hashlib.sha256(f"embeddings {embeddings.vectors.shape}\n".encode())
    for image_id in embeddings.ids:
        digest.update(f"{image_id}\n".encode())
    for start in range(0, len(embeddings), BLOCK):
        part = embeddings.vectors[start : start + BLOCK]
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    return digest.hexdigest()[:32]


def named_fingerprint(model_name: str, dim: int) -> str:
    """Return the fingerprint of a model of which only the name is known.

    Two files whose user gives them the same name count as made by the same model.
    """
    return hashlib.sha256(f"model named {model_name!r}, dimension {dim}".encode()).hexdigest()[:32]


def checked_lengths(embeddings: Embeddings, start: int, name: str) -> NDArray[np.float64]:
    """Return the lengths of ``BLOCK`` rows from ``start`` on, which must be finite and not zero."""
    block = np.asarray(embeddings.vectors[start : start + BLOCK], dtype=np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
    problems = {"has NaN or infinite values": ~np.isfinite(lengths), "is all zeros": lengths == 0}
    for problem, bad in problems.items():
        if bad.any():
            row = start + int(bad.argmax())
            raise UserError(
                f"{name}, row {row} ({embeddings.ids[row]!r}) {problem}, as {int(bad.sum())} of "
                f"rows {start} to {start + len(block) - 1}; remove or repair them"
            )
    return lengths


def require_distinct_ids(ids: tuple[str, ...], name: str) -> None:
    """Refuse an id that two rows have; name both."""
    if len(set(ids)) == len(ids):
        return
    first_row: dict[str, int] = {}
    for row, image_id in enumerate(ids):
        if image_id in first_row:
            doubled = len(ids) - len(set(ids))
            raise UserError(
                f"{name}, row {row} has the id {image_id!r} of row {first_row[image_id]}; "
                f"{doubled} rows have an id that came before"
            )
        first_row[image_id] = row


# An embedder that has nothing but stored embeddings: it knows its images by their ids.


@dataclass(frozen=True)
class StoredEmbeddings:
    """Embeddings in place of the model that made them."""

    name: str  # what the user called them
    embeddings: Embeddings  # checked, with rows of length 1

    @property
    def dim(self) -> int:
        """The dimension of the embeddings."""
        return self.embeddings.vectors.shape[1]

    @property
    def fingerprint(self) -> str:
        """Of the model that made them, or a digest of ids and vectors if it is not known."""
        return self.embeddings.fingerprint

    @property
    def training_classes(self) -> TrainingClasses:
        """The classes that the model was trained on, as far as they are recorded."""
        return self.embeddings.training_classes

    def require_all(self, images: ImageSet) -> None:
        """Refuse images that have no embedding; count them and name the first."""
        position = self.embeddings.position
        missing = [image_id for image_id in images.ids if image_id not in position]
        if missing:
            raise UserError(
                f"{self.name} has no embedding of {len(missing)} of {len(images)} images of "
                f"{images.name}, first {missing[0]!r}; add them, or name the others with --images"
            )

    def note_surplus(self, images: ImageSet) -> None:
        """Report rows of none of the images: count them and name the first."""
        surplus = [i for i in self.embeddings.ids if i not in images.position]
        if surplus:
            progress.note(
                f"{self.name} has {len(surplus)} embeddings of none of the {len(images)} images of "
                f"{images.name}, first {surplus[0]!r}; they are not used"
            )

    def known_images(self, images: ImageSet) -> ImageSet:
        """Return the images that have an embedding."""
        position = self.embeddings.position
        rows = [row for row, image_id in enumerate(images.ids) if image_id in position]
        if not rows:
            raise UserError(f"{self.name} has no embedding of any image of {images.name}")
        return images if len(rows) == len(images) else images.select(rows)

    def of(self, images: ImageSet) -> Embeddings:
        """Return the embeddings of a set's images, in the order of the set."""
        self.require_all(images)
        return self.embeddings.of_images(images)


def require_stored(embedders: Iterable[object], images: ImageSet) -> None:
    """Refuse images that stored embeddings lack, before another model embeds any."""
    for embedder in embedders:
        if isinstance(embedder, StoredEmbeddings):
            embedder.require_all(images)


# Finished vectors as data: each row stands where an image would, with its id and class.


@dataclass(frozen=True)
class _Reader:
    """Reads a row as an image of one row and as many columns as the vector has numbers."""

    embeddings: Embeddings

    def __call__(self, image_id: str) -> Pixels:
        vector = np.asarray(self.embeddings.vectors[[self.embeddings.position[image_id]]])
        return vector.reshape(1, -1, 1)  # pyright: ignore[reportReturnType]


def vector_set(embeddings: Embeddings, name: str) -> ImageSet:
    """Return embeddings, with classes and rows of length 1, as a set to train or evaluate on."""
    if not embeddings.class_names:
        raise UserError(
            f"{name} has no classes: add a column `label`, or NAME.labels.txt beside NAME.npy"
        )
    used, labels = np.unique(embeddings.labels, return_inverse=True)
    names, source = [embeddings.class_names[int(c)] for c in used], embeddings.class_source
    is_known = source not in (None, UNKNOWN_SOURCE)
    class_names, class_source = (tuple(names), source) if is_known else names_and_source(names)
    return ImageSet(
        name,
        embeddings.ids,
        labels.astype(np.int64),
        class_names,
        _Reader(embeddings),
        class_source=class_source,
        vector_dim=embeddings.vectors.shape[1],
        vectors_by=embeddings.training_classes,
    )


def open_data(
    name: str | Path, list_file: Path | None = None, *, skip_bad: bool = False
) -> ImageSet:
    """Open images, see ``open_images``, or finished vectors, ``embeddings:PATH``.

    Args:
        name: the path or the name of the set.
        list_file: a file with one id per line; the result has only these.
        skip_bad: whoever reads the set leaves unreadable images out, instead of refusing.
    """
    text = str(name)
    if not text.startswith(PREFIX) or Path(text).exists():
        return open_images(name, list_file, skip_bad=skip_bad)
    path = Path(text.removeprefix(PREFIX))
    rows = vector_set(usable_embeddings(read_embeddings(path), str(path)), text)
    rows = replace(rows, skip_bad=skip_bad)
    return rows if list_file is None else select_listed(rows, list_file)


def training_data(
    data: str | None,
    from_embeddings: str | None,
    list_file: Path | None,
    *,
    skip_bad: bool = False,
) -> ImageSet:
    """Open what a model is trained on: images, or finished vectors (a path), see ``open_data``."""
    if (data is None) == (from_embeddings is None):
        raise UserError("give DATA, the images, or --from-embeddings, finished vectors")
    name = data if data is not None else f"{PREFIX}{from_embeddings}"
    return open_data(name, list_file, skip_bad=skip_bad)
