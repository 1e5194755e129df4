"""The base of methods that classify new embeddings by fixed class vectors of the old space."""

from torch import Tensor

from unibct.errors import UserError
from unibct.losses.unit_rows import unit_rows
from unibct.methods.base import Batch, Method, Settings


class FrozenClassVectors(Method):
    """ArcFace on class vectors of the old space, which get no gradient.

    A subclass sets ``_class_vectors``, (own classes, dim), at the latest in its first ``refresh``.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._class_vectors: Tensor | None = None
        self._normalised: tuple[Tensor, Tensor] | None = None  # class vectors, the same of length 1

    def loss(self, batch: Batch) -> Tensor:
        """Return ArcFace of the new embeddings."""
        class_vectors = batch.in_use(self._unit_class_vectors())
        return batch.arcface(batch.embeddings, class_vectors, self._settings, unit_length=True)

    def _unit_class_vectors(self) -> Tensor:
        """Return (own classes, dim) the class vectors of length 1, computed when they change."""
        if self._class_vectors is None:
            raise UserError(
                "this method looks at the new model first: call refresh with its embeddings of the "
                "whole training set before the first loss"
            )
        if self._normalised is None or self._normalised[0] is not self._class_vectors:
            self._normalised = (self._class_vectors, unit_rows(self._class_vectors))
        return self._normalised[1]

    def class_state(self) -> dict[str, Tensor]:
        """Return the class vectors, if they have been made."""
        return {} if self._class_vectors is None else {"class_vectors": self._class_vectors}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue with the class vectors of a checkpoint."""
        self._class_vectors = state.get("class_vectors", self._class_vectors)
