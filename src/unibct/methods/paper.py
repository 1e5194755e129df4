"""The paper's methods, what it compares with, and others that have the same form."""

from typing import Any

import torch
from torch import Tensor

from unibct.errors import UserError
from unibct.losses import contrast, mixed_contrast, regress, unit_rows
from unibct.methods import require_known_classes
from unibct.methods.base import Batch, Method, OldEmbeddings, Settings
from unibct.prototypes.inputs import PROTOTYPE_KINDS
from unibct.prototypes.weights import moved_apart


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


class Prototypes(FrozenClassVectors):
    """`unibct`, `unibct-centroid`, `unibct-drop`, `ndpp`: prototypes made from old embeddings.

    ``kind`` is a name from ``PROTOTYPE_KINDS``; ``apart`` moves each prototype away from its
    nearest ones (``ndpp``).
    """

    def __init__(
        self, old: OldEmbeddings, settings: Settings, *, kind: str, apart: bool = False
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


class Bct(FrozenClassVectors):
    """`bct` (Shen et al., CVPR 2020): ArcFace on the old classifier's class weights.

    They exist only for classes that the old model knows.
    """

    def __init__(self, old: OldEmbeddings, settings: Settings) -> None:
        super().__init__(settings)
        if old.old_class_weights is None:
            raise UserError(
                "bct needs the old classifier, but the old model's folder has no "
                "classifier.safetensors; use unibct"
            )
        require_known_classes(old.old_class_names, old.class_names)
        old_row = {name: row for row, name in enumerate(old.old_class_names)}
        rows = torch.tensor([old_row[old.class_names[i]] for i in old.own_classes])
        self._class_vectors = old.old_class_weights[rows].to(old.labels.device)


class Regress(Method):
    """`regress` (AML): squared distance between each image's new and old embedding."""

    def __init__(self, old: OldEmbeddings, settings: Settings) -> None:
        self._old = self.old_of_images = old

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean squared distance."""
        return regress(new=batch.embeddings, old=self._old.of(batch))


class Contrast(Method):
    """`contrast`, and `ract` (Zhang et al., ICLR 2022): find the image's own old embedding.

    A softmax over it and the batch's old embeddings of other classes; with ``among_new``, for
    galleries that hold rows of both models, also over the batch's new ones. ``tau`` is the
    temperature, by default the recipe's.
    """

    def __init__(
        self,
        old: OldEmbeddings,
        settings: Settings,
        *,
        among_new: bool = False,
        tau: float | None = None,
    ) -> None:
        self._old = self.old_of_images = old
        self._formula = mixed_contrast if among_new else contrast
        self._tau = settings.tau if tau is None else tau

    def loss(self, batch: Batch) -> Tensor:
        """Return the softmax cross entropy."""
        old, ranks = self._old.of(batch), batch.ranks
        return self._formula(
            batch.labels, new=batch.embeddings, old=old, tau=self._tau, ranks=ranks
        )
