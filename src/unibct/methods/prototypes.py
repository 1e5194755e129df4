"""`unibct`, `unibct-centroid`, `unibct-drop`, `ndpp`: ArcFace on prototypes in the old space."""

from typing import Any

from torch import Tensor

from unibct.methods.base import OldKnowledge, Settings
from unibct.methods.frozen_class_vectors import FrozenClassVectors
from unibct.prototypes.kinds import PROTOTYPE_KINDS
from unibct.prototypes.spread import moved_apart


class Prototypes(FrozenClassVectors):
    """Prototypes made from the old embeddings of the new training set.

    Args:
        old: what the old model knows of the new training set.
        settings: the recipe's numbers.
        kind: a name from ``PROTOTYPE_KINDS``.
        apart: move each prototype away from its nearest ones (``ndpp``).
    """

    def __init__(
        self, old: OldKnowledge, settings: Settings, *, kind: str, apart: bool = False
    ) -> None:
        super().__init__(settings)
        self._old = old
        self._kind = kind
        self._apart = apart
        self.needs_new_embeddings = PROTOTYPE_KINDS[kind].needs_new

    def refresh(self, new_embeddings: Any) -> None:
        """Make the prototypes. Those that use no new embeddings are made only once."""
        if self._class_vectors is not None and not self.needs_new_embeddings:
            return
        prototypes = self._old.prototypes(self._kind, self._settings, new_embeddings)
        self._class_vectors = self._moved_apart(prototypes) if self._apart else prototypes

    def _moved_apart(self, own_prototypes: Tensor) -> Tensor:
        """Move this rank's prototypes away from those of all ranks, which it gathers for this."""
        classes = len(self._old.class_names)
        own_rows = slice(self._old.own_classes.start, self._old.own_classes.stop)
        all_prototypes = own_prototypes.new_zeros((classes, own_prototypes.shape[1]))
        all_prototypes[own_rows] = own_prototypes
        return moved_apart(self._old.ranks.summed(all_prototypes))[own_rows]
