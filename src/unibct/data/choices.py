"""What was chosen or measured, and on which images: a test on the same ones promises too much.

A choice is kept with what it made: with a model and its embeddings (``TrainingClasses``), with a
score map, with a share of queries. Only digests are kept, as of training classes.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MODEL = "the model"  # in ``Choice.what``


@dataclass(frozen=True)
class Choice:
    """What was chosen, and on what; a test set is described in the same way.

    Attributes:
        what: such as "the best epoch of the model was chosen".
        data: the name of the images; None if they have none.
        images: digests by which the same images are found again, in any order: of their ids and
            classes, and of their vectors by the old model.
        classes: digests of their classes; None if these are not known.
        class_source: what numbered the classes, see ``ImageSet``.
    """

    what: str
    data: str | None = None
    images: frozenset[str] = frozenset()
    classes: frozenset[str] | None = None
    class_source: str | None = None

    def of_model(self, role: str) -> "Choice":
        """Return the same choice, said of the old or the new model."""
        return replace(self, what=self.what.replace(_MODEL, f"the {role} model"))

    def with_vectors(self, old_vectors: NDArray[Any]) -> "Choice":
        """Return the same choice, with a digest of the old model's vectors of its images."""
        rows = np.ascontiguousarray(old_vectors, dtype="<f4")
        return replace(self, images=self.images | {unordered_digest(row.tobytes() for row in rows)})

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {
            "what": self.what,
            "data": self.data,
            "images": sorted(self.images),
            "classes": None if self.classes is None else sorted(self.classes),
            "class_source": self.class_source,
        }

    @staticmethod
    def of_json(content: Any) -> "Choice":
        """Return the choice from what ``as_json`` returned."""
        classes = content["classes"]
        return Choice(
            str(content["what"]),
            content["data"],
            frozenset(content["images"]),
            None if classes is None else frozenset(classes),
            content["class_source"],
        )


ALPHA_OF_QUERIES = "α of the blended queries was chosen"
ALPHA_OF_WEIGHTS = f"α of {_MODEL}'s blended weights was chosen"
BEST_EPOCH = f"the best epoch of {_MODEL} was chosen"
SCORE_SCALE_MEASURED = f"the score scale of {_MODEL} was measured"
SCORE_MAP_FITTED = "the score map was fitted"
UNRECORDED = Choice(f"anything about {_MODEL} was chosen")  # earlier versions kept nothing


def unordered_digest(rows: Iterable[bytes]) -> str:
    """Return a digest of rows that does not depend on their order."""
    digests = sorted(hashlib.blake2b(row, digest_size=16).digest() for row in rows)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:32]
