"""The paper's methods: regression, contrast, BCT, and ArcFace on three kinds of prototypes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unibct.errors import UserError
from unibct.losses.contrast import contrast
from unibct.losses.regress import regress
from unibct.methods.base import Batch, Method, OldKnowledge, Settings
from unibct.prototypes.spread import moved_apart


class Regress(Method):
    """Pull each new embedding to the old one of the same image."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        self._old = old

    def loss(self, batch: Batch) -> Tensor:
        """Mean squared distance."""
        return regress(batch.embeddings, self._old.of(batch))


class Contrast(Method):
    """Each image's own old embedding against the batch's old embeddings of other classes."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        self._old = old
        self._tau = settings.tau

    def loss(self, batch: Batch) -> Tensor:
        """Softmax cross entropy."""
        return contrast(
            batch.embeddings,
            self._old.of(batch),
            batch.labels,
            tau=self._tau,
            ranks=batch.ranks,
        )


class FrozenClassVectors(Method):
    """ArcFace on class vectors of the old space that get no gradient."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._vectors: Tensor | None = None

    def loss(self, batch: Batch) -> Tensor:
        """ArcFace."""
        assert self._vectors is not None, "refresh comes before the first compatible step"
        return batch.arcface(batch.embeddings, batch.in_use(self._vectors), self._settings)

    def class_state(self) -> dict[str, Tensor]:
        """The class vectors in use."""
        return {} if self._vectors is None else {"class_vectors": self._vectors}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on with the same class vectors."""
        self._vectors = state.get("class_vectors", self._vectors)


class Bct(FrozenClassVectors):
    """The old classifier's own class weights; only where the old classes cover the new ones."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        super().__init__(settings)
        if old.old_class_weights is None:
            raise UserError(
                "bct needs the old classifier, but the old model's folder has no "
                "classifier.safetensors; use unibct"
            )
        require_known_classes(old.old_class_names, old.class_names)
        row = {name: i for i, name in enumerate(old.old_class_names)}
        rows = torch.tensor([row[old.class_names[i]] for i in old.own_classes])
        self._vectors = old.old_class_weights[rows].to(old.labels.device)


class Prototypes(FrozenClassVectors):
    """Prototypes made from the old embeddings of the new training set."""

    def __init__(
        self, old: OldKnowledge, settings: Settings, *, kind: str, apart: bool = False
    ) -> None:
        super().__init__(settings)
        self._old = old
        self._kind = kind
        self._apart = apart
        self.needs_new_embeddings = kind == "structural"

    def refresh(self, new_embeddings: Any) -> None:
        """Make the prototypes; those that use no new embeddings never change again."""
        if self._vectors is not None and not self.needs_new_embeddings:
            return
        self._vectors = self._old.prototypes(self._kind, self._settings, new_embeddings)
        if self._apart:
            self._vectors = self._moved_apart(self._vectors)

    def _moved_apart(self, own: Tensor) -> Tensor:
        """Moved away from the prototypes of all ranks, which this method holds for a moment."""
        classes, part = len(self._old.class_names), self._old.own_classes
        everyone = own.new_zeros((classes, own.shape[1]))
        everyone[part.start : part.stop] = own
        return moved_apart(self._old.ranks.summed(everyone))[part.start : part.stop]


def require_known_classes(old_classes: Sequence[str], new_classes: Sequence[str]) -> None:
    """Refuse new classes that the old model was not trained on."""
    unknown = sorted(set(new_classes) - set(old_classes))
    if unknown:
        raise UserError(
            f"bct cannot be used here: the old model does not know {len(unknown)} of the "
            f"{len(new_classes)} new classes, first {unknown[0]!r}; use unibct"
        )
