"""The base of methods that classify new embeddings by fixed class vectors of the old space."""

from torch import Tensor

from unibct.methods.base import Batch, Method, Settings


class FrozenClassVectors(Method):
    """ArcFace on class vectors of the old space, which get no gradient.

    A subclass sets ``_class_vectors``, (own classes, dim), at the latest in its first ``refresh``.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._class_vectors: Tensor | None = None

    def loss(self, batch: Batch) -> Tensor:
        """Return ArcFace of the new embeddings."""
        assert self._class_vectors is not None, "refresh comes before the first compatible step"
        return batch.arcface(batch.embeddings, batch.in_use(self._class_vectors), self._settings)

    def class_state(self) -> dict[str, Tensor]:
        """Return the class vectors, if they have been made."""
        return {} if self._class_vectors is None else {"class_vectors": self._class_vectors}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue with the class vectors of a checkpoint."""
        self._class_vectors = state.get("class_vectors", self._class_vectors)
