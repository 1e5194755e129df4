"""Embeddings with their ids and labels, and opening a folder of them.

A folder may be larger than memory. Its files are written once and never changed; only
``embeddings.json``, which says which shards belong to it, is replaced, after everything else. So
a process that is killed while it adds shards leaves the folder as it was.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet, read_id_list
from unibct.data.training_classes import UNKNOWN_CLASSES, UNKNOWN_SOURCE, TrainingClasses
from unibct.embeddings.layout import (
    CLASSES_FILE,
    DESCRIPTION_FILE,
    DTYPES,
    TRAINING_CLASSES_FILE,
    FileDigest,
    Shard,
    check_file,
    ids_file,
    labels_file,
    map_array,
    read_text,
    shard_from_json,
)
from unibct.embeddings.rows import Rows, Vectors
from unibct.errors import UserError
from unibct.files import read_json

FORMAT = 2
NO_CLASS = -1  # the label of every row of embeddings whose classes are not known
VERIFIED_BYTES = 1 << 30  # opening compares the checksums of folders up to this size

T = TypeVar("T")


class Embeddings:
    """One model's vectors of an image set, with the images' ids and labels.

    Attributes:
        vectors: (images, dim) float32: an array, or the ``Rows`` of a folder. They are
            L2-normalised, unless the folder was made for an evaluation protocol.
        fingerprint: the model's fingerprint.
        class_source: what numbered the images' classes, see ``ImageSet``; or ``UNKNOWN_SOURCE``.
    """

    def __init__(
        self,
        vectors: Vectors,
        ids: tuple[str, ...] | Callable[[], tuple[str, ...]],
        labels: NDArray[np.int64] | Callable[[], NDArray[np.int64]],
        class_names: tuple[str, ...] | Callable[[], tuple[str, ...]],
        fingerprint: str,
        *,
        class_source: str | None = UNKNOWN_SOURCE,
        training_classes: TrainingClasses | Callable[[], TrainingClasses] = UNKNOWN_CLASSES,
    ) -> None:
        """Take the values, or functions that read them on first use; check what is given.

        Args:
            vectors: (images, dim) float32.
            ids: one per image.
            labels: (images,) int64, indices into ``class_names``; all ``NO_CLASS`` if there are
                none.
            class_names: one per class; none if the classes are not known.
            fingerprint: the model's fingerprint.
            class_source: what numbered the classes, see ``ImageSet``; by default unknown.
            training_classes: what the model was trained on; by default unknown.
        """
        self.vectors = vectors
        self.fingerprint = fingerprint
        self.class_source = class_source
        self._ids, self._labels, self._class_names = ids, labels, class_names
        self._training_classes = training_classes
        if vectors.ndim != 2 or vectors.dtype != np.float32:
            raise UserError(
                f"vectors must be float32 of shape (images, dim), not {vectors.dtype} of "
                f"shape {vectors.shape}"
            )
        if not callable(ids):
            _ = self.ids
        if not callable(labels):
            _ = self.labels

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """One id per image."""
        ids = tuple(_value_of(self._ids))
        if len(ids) != len(self):
            raise UserError(f"{len(self)} vectors and {len(ids)} ids do not match")
        return ids

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(images,) int64, indices into ``class_names``; all −1 if no classes are known."""
        labels = _value_of(self._labels)
        if labels.shape != (len(self),):
            raise UserError(f"{len(self)} vectors and {len(labels)} labels do not match")
        if not self.class_names and bool((labels == NO_CLASS).all()):
            return labels
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.class_names):
            raise UserError(f"labels go beyond the {len(self.class_names)} class names")
        return labels

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """One name per class; none if the classes are not known."""
        return _value_of(self._class_names)

    @cached_property
    def training_classes(self) -> TrainingClasses:
        """The classes that the model was trained on."""
        return _value_of(self._training_classes)

    def __len__(self) -> int:
        return len(self.vectors)

    def changed(
        self,
        *,
        vectors: Vectors | None = None,
        fingerprint: str,
        training_classes: TrainingClasses | None = None,
    ) -> "Embeddings":
        """Return the same rows as another model's, perhaps with other vectors and classes."""
        return Embeddings(
            self.vectors if vectors is None else vectors,
            self.ids,
            self.labels,
            self.class_names,
            fingerprint,
            class_source=self.class_source,
            training_classes=training_classes or self._training_classes,
        )

    def listed(self, list_file: Path) -> "Embeddings":
        """Return the rows whose ids are in a file, which has one id per line."""
        position = {row_id: row for row, row_id in enumerate(self.ids)}
        lines = read_id_list(list_file)
        for row_id, number in lines.items():
            if row_id not in position:
                raise UserError(f"{list_file}, line {number}: {row_id!r} has no embedding")
        rows = sorted(position[row_id] for row_id in lines)
        return Embeddings(
            np.asarray(self.vectors[rows]),
            tuple(self.ids[row] for row in rows),
            self.labels[rows],
            self.class_names,
            self.fingerprint,
            class_source=self.class_source,
            training_classes=self._training_classes,
        )

    def of_images(self, images: ImageSet) -> "Embeddings":
        """Return the embeddings of ``images``, in the order of ``images``."""
        return Embeddings(
            self.rows_of(images),
            images.ids,
            images.labels,
            images.class_names,
            self.fingerprint,
            class_source=images.class_source,
            training_classes=self._training_classes,
        )

    def rows_of(self, images: ImageSet) -> NDArray[np.float32]:
        """Return the vectors of ``images``, in the order of ``images``."""
        if self.ids == images.ids:
            return np.asarray(self.vectors)
        position = {image_id: row for row, image_id in enumerate(self.ids)}
        missing = [image_id for image_id in images.ids if image_id not in position]
        if missing:
            raise UserError(
                f"{len(missing)} images of {images.name} have no embedding, first {missing[0]!r}; "
                "make them with `unibct embed`"
            )
        return self.vectors[[position[image_id] for image_id in images.ids]]


def open_embeddings(folder: str | Path, *, verify: bool | None = None) -> Embeddings:
    """Open an embeddings folder in milliseconds; only its description is read at once.

    Args:
        folder: what ``save_embeddings`` or ``unibct embed`` wrote.
        verify: read all files once and compare their checksums. By default this is done for a
            folder of up to 1 GiB; for a larger one only the counts and the file sizes are checked.
    """
    folder = Path(folder)
    description = read_description(folder)
    shards = description.shards
    digests = {name: digest for shard in shards for name, digest in shard.files.items()}
    trained_on = description.trained_on
    if trained_on is not None:
        digests[TRAINING_CLASSES_FILE] = trained_on.file
    total_bytes = sum(digest.bytes for digest in digests.values())
    verify = total_bytes <= VERIFIED_BYTES if verify is None else verify
    for name, digest in digests.items():
        check_file(folder / name, digest, verify=verify)
    if verify:
        _read_class_names(folder / description.classes_file, description.classes)
    return Embeddings(
        Rows(folder, shards, description.dim, description.dtype),
        lambda: _read_ids(folder, shards),
        lambda: _read_labels(folder, shards),
        lambda: _read_class_names(folder / description.classes_file, description.classes),
        description.fingerprint,
        class_source=description.class_source,
        training_classes=lambda: _read_training_classes(folder, trained_on),
    )


@dataclass(frozen=True)
class TrainedOn:
    """What ``embeddings.json`` says about the model's training classes.

    Attributes:
        file: the digest of ``training_classes.txt``.
        others: everything about them but their digests.
    """

    file: FileDigest
    others: TrainingClasses


@dataclass(frozen=True)
class Description:
    """The content of ``embeddings.json``.

    Attributes:
        dim: numbers in a vector.
        dtype: the vectors' type on disk.
        fingerprint: the model's fingerprint.
        classes: the digest of the part of ``classes_file`` that belongs to these shards.
        shards: in the order of their rows.
        source: the key of the model, pixels and settings the folder was made from, if known.
        protocol: the evaluation protocol whose rules the vectors follow; they are not normalised
            then. None: each vector is an image's normalised embedding.
        class_source: what numbered the classes, see ``ImageSet``.
        trained_on: the model's training classes; None if they are unknown, as in folders that
            were made before they were kept.
        classes_file: the name of the file with the names of the classes.
    """

    dim: int
    dtype: str
    fingerprint: str
    classes: FileDigest
    shards: list[Shard]
    source: str | None
    protocol: str | None = None
    class_source: str | None = UNKNOWN_SOURCE
    trained_on: TrainedOn | None = None
    classes_file: str = CLASSES_FILE


def read_description(folder: Path) -> Description:
    """Read and check ``embeddings.json``; an error says what is wrong with the folder."""
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        raise UserError(f"{folder} is not an embeddings folder: no {DESCRIPTION_FILE} in it")
    content: dict[str, Any] = read_json(path)
    try:
        if content["format"] != FORMAT:
            raise UserError(
                f"{folder} has format {content['format']}, and this unibct reads {FORMAT}; "
                "embed the images again"
            )
        shards = [shard_from_json(entry) for entry in content["shards"]]
        firsts = [0, *accumulate(shard.rows for shard in shards)]
        if [shard.first for shard in shards] != firsts[:-1] or firsts[-1] != content["images"]:
            raise UserError(
                f"{path} says {content['images']} images, but its shards have {firsts[-1]}; "
                "embed the images again"
            )
        if content["dtype"] not in DTYPES:
            raise UserError(f"{path}: unknown dtype {content['dtype']!r}")
        return Description(
            int(content["dim"]),
            content["dtype"],
            content["model"],
            FileDigest(**content["classes"]),
            shards,
            content["source"],
            content.get("protocol"),
            content.get("class_source", UNKNOWN_SOURCE),
            _trained_on(content.get("training_classes")),
            Path(content.get("classes_file", CLASSES_FILE)).name,
        )
    except KeyError as error:
        raise UserError(f"{path} lacks the entry {error}; embed the images again") from error
    except (TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be understood ({error}); embed the images again") from error


def _trained_on(content: Any) -> TrainedOn | None:
    if content is None:
        return None
    file = FileDigest(content["bytes"], content["sha256"])
    others = TrainingClasses.of_json(content | {"digests": ()})
    # Earlier versions, which kept no choices, took trained first weights for random ones.
    return TrainedOn(file, others if "choices" in content else replace(others, complete=False))


def _value_of(value: T | Callable[[], T]) -> T:
    return cast("Callable[[], T]", value)() if callable(value) else value


def _read_labels(folder: Path, shards: Sequence[Shard]) -> NDArray[np.int64]:
    labels = [
        map_array(folder / labels_file(number), (shard.rows,), np.int64)
        for number, shard in enumerate(shards)
    ]
    if len(labels) == 1:
        return labels[0]
    return np.concatenate(labels) if labels else np.empty(0, dtype=np.int64)


def _read_ids(folder: Path, shards: Sequence[Shard]) -> tuple[str, ...]:
    ids: list[str] = []
    for number, shard in enumerate(shards):
        path = folder / ids_file(number)
        shard_ids = read_text(path).split("\n")[:-1]
        if len(shard_ids) != shard.rows:
            raise UserError(
                f"{path} has {len(shard_ids)} ids for {shard.rows} rows; embed the images again"
            )
        ids += shard_ids
    return tuple(ids)


def _read_training_classes(folder: Path, trained_on: TrainedOn | None) -> TrainingClasses:
    if trained_on is None:
        return UNKNOWN_CLASSES
    digests = frozenset(read_text(folder / TRAINING_CLASSES_FILE).split())
    return replace(trained_on.others, digests=digests)


def _read_class_names(path: Path, digest: FileDigest) -> tuple[str, ...]:
    """Read the class names that a description counts; the file may have more after them."""
    data = read_text(path).encode()[: digest.bytes]
    if hashlib.sha256(data).hexdigest() != digest.sha256:
        raise UserError(f"{path} is damaged (its checksum differs); embed the images again")
    return tuple(data.decode().split("\n")[:-1])
