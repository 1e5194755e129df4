"""An embedder that has nothing but stored embeddings: it knows its images by their ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet
from unibct.data.training_classes import TrainingClasses
from unibct.embeddings.folder import Embeddings
from unibct.errors import UserError
from unibct.progress import Progress


@dataclass(frozen=True)
class StoredEmbeddings:
    """Embeddings in place of the model that made them.

    Attributes:
        name: what the user called them.
        embeddings: checked, with rows of length 1.
    """

    name: str
    embeddings: Embeddings

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

    @cached_property
    def position(self) -> dict[str, int]:
        """The row of each id."""
        return {image_id: row for row, image_id in enumerate(self.embeddings.ids)}

    def vectors_of(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return (ids, dim) the rows with these ids, which must be there."""
        rows = [self.position[image_id] for image_id in ids]
        if rows == list(range(len(self.embeddings))):
            return np.asarray(self.embeddings.vectors)
        return self.embeddings.vectors[rows]

    def require_all(self, images: ImageSet) -> None:
        """Refuse images that have no embedding; count them and name the first."""
        missing = [image_id for image_id in images.ids if image_id not in self.position]
        if missing:
            raise UserError(
                f"{self.name} has no embedding of {len(missing)} of {len(images)} images of "
                f"{images.name}, first {missing[0]!r}; add them, or name the others with --images"
            )

    def note_surplus(self, images: ImageSet, progress: Progress) -> None:
        """Report rows of none of the images: count them and name the first."""
        surplus = [i for i in self.embeddings.ids if i not in images.position]
        if surplus:
            progress.note(
                f"{self.name} has {len(surplus)} embeddings of none of the {len(images)} images of "
                f"{images.name}, first {surplus[0]!r}; they are not used"
            )

    def known_images(self, images: ImageSet) -> ImageSet:
        """Return the images that have an embedding."""
        rows = [row for row, image_id in enumerate(images.ids) if image_id in self.position]
        if not rows:
            raise UserError(f"{self.name} has no embedding of any image of {images.name}")
        return images if len(rows) == len(images) else images.select(rows)

    def of(self, images: ImageSet) -> Embeddings:
        """Return the embeddings of a set's images, in the order of the set."""
        self.require_all(images)
        return Embeddings(
            self.vectors_of(images.ids),
            images.ids,
            images.labels,
            images.class_names,
            self.fingerprint,
            class_source=images.class_source,
            training_classes=self.training_classes,
        )


def require_stored(embedders: Iterable[object], images: ImageSet) -> None:
    """Refuse images that stored embeddings lack, before another model embeds any."""
    for embedder in embedders:
        if isinstance(embedder, StoredEmbeddings):
            embedder.require_all(images)
