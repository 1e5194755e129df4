"""What an evaluation tested: two models by their fingerprints, and the data by its digest."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unibct.data.image_set import ImageSet
from unibct.embeddings.store import Vectors
from unibct.models.embedder import Embedder

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class SubjectModel:
    """A model that was tested.

    Attributes:
        fingerprint: tells it from all models with other vectors.
        dim: the dimension of its embeddings.
        name: what the user called it.
        vectors: a digest of its embeddings of the test images, which changes with the images too.
    """

    fingerprint: str
    dim: int
    name: str
    vectors: str


@dataclass(frozen=True)
class SubjectData:
    """The data of a test.

    Attributes:
        name: what the user called it.
        digest: of the ids and classes of its images, in their order.
        images: how many there are.
        classes: how many there are.
    """

    name: str
    digest: str
    images: int
    classes: int


@dataclass(frozen=True)
class Subjects:
    """What an evaluation tested."""

    old: SubjectModel
    new: SubjectModel
    data: SubjectData

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return asdict(self)


def subject_model(embedder: Embedder, vectors: Vectors) -> SubjectModel:
    """Return what to say about a model.

    Args:
        embedder: the model.
        vectors: (images, dim) its embeddings of the test images.
    """
    digest = hashlib.sha256()
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        block = vectors[start : start + _ROWS_AT_ONCE]
        digest.update(np.ascontiguousarray(block, dtype="<f4").tobytes())
    return SubjectModel(embedder.fingerprint, embedder.dim, embedder.name, digest.hexdigest())


def subject_data(images: ImageSet) -> SubjectData:
    """Return what to say about a test set."""
    return SubjectData(images.name, images.digest, len(images), len(images.class_names))


def known_fingerprints(**sides: Any) -> dict[str, str]:
    """Return the fingerprints of ``query`` and ``gallery``; arrays have none."""
    known = {side: getattr(model, "fingerprint", None) for side, model in sides.items()}
    return {side: fingerprint for side, fingerprint in known.items() if fingerprint}
