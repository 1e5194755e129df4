"""The compatibility methods: what L_comp is, each one entry in one table.

A method is built once from what the old model knows of the new training set; the training loop
calls ``refresh`` at the refresh epochs and ``loss`` in each step, and names no method.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unibct import losses
from unibct.errors import UserError
from unibct.prototypes import class_prototypes


@dataclass(frozen=True)
class OldKnowledge:
    """What the old model says of the new training set.

    Attributes:
        embeddings: (images, dim) the old model's embeddings of the new training set; (0, dim) for
            a method that says it needs none.
        labels: (images,) the classes of the new training set, 0…C-1.
        class_names: the names of those classes.
        old_class_names: the classes that the old model was trained on.
        old_class_weights: (old classes, dim) its classifier's rows.
    """

    embeddings: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    old_class_names: tuple[str, ...]
    old_class_weights: Tensor | None


@dataclass(frozen=True)
class Settings:
    """The recipe's numbers that methods use."""

    scale: float
    margin: float
    tau: float
    lam: float
    drop: float


@dataclass(frozen=True)
class Batch:
    """One step's images: new embeddings with gradients, labels, and rows in the training set."""

    embeddings: Tensor
    labels: Tensor
    rows: Tensor


class Method:
    """No compatibility: the upper bound of the self test, and the base of the others."""

    needs_new_embeddings = False  # at each refresh

    def refresh(self, new_embeddings: Tensor | None) -> None:
        """Renew what depends on the new model, at the beginning of a refresh epoch.

        Args:
            new_embeddings: (images, dim) in evaluation mode, without augmentation; only for
                methods that ask for them.
        """

    def loss(self, batch: Batch) -> Tensor:
        """L_comp of a batch, a scalar."""
        return batch.embeddings.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint must keep."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``state`` gave."""


class Regress(Method):
    """Pull each new embedding to the old one of the same image."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        self._old = old.embeddings

    def loss(self, batch: Batch) -> Tensor:
        """Mean squared distance."""
        return losses.regress(batch.embeddings, self._old[batch.rows])


class Contrast(Method):
    """Each image's own old embedding against the batch's old embeddings of other classes."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        self._old = old.embeddings
        self._tau = settings.tau

    def loss(self, batch: Batch) -> Tensor:
        """Softmax cross entropy."""
        return losses.contrast(batch.embeddings, self._old[batch.rows], batch.labels, tau=self._tau)


class FrozenClassVectors(Method):
    """ArcFace on class vectors of the old space that get no gradient."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._vectors: Tensor | None = None

    def loss(self, batch: Batch) -> Tensor:
        """ArcFace."""
        assert self._vectors is not None, "refresh comes before the first compatible step"
        return losses.arcface(
            batch.embeddings,
            self._vectors,
            batch.labels,
            scale=self._settings.scale,
            margin=self._settings.margin,
        )

    def state(self) -> dict[str, Tensor]:
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
        rows = torch.tensor([row[name] for name in old.class_names])
        self._vectors = old.old_class_weights[rows].to(old.labels.device)


class Prototypes(FrozenClassVectors):
    """Prototypes made from the old embeddings of the new training set."""

    def __init__(self, old: OldKnowledge, settings: Settings, *, kind: str) -> None:
        super().__init__(settings)
        self._old = old
        self._kind = kind
        self.needs_new_embeddings = kind == "structural"

    def refresh(self, new_embeddings: Tensor | None) -> None:
        """Make the prototypes; those that use no new embeddings never change again."""
        if self._vectors is not None and not self.needs_new_embeddings:
            return
        self._vectors = class_prototypes(
            self._old.embeddings,
            self._old.labels,
            new=new_embeddings,
            kind=self._kind,
            tau=self._settings.tau,
            lam=self._settings.lam,
            drop=self._settings.drop,
        )


def require_known_classes(old_classes: Sequence[str], new_classes: Sequence[str]) -> None:
    """Refuse new classes that the old model was not trained on."""
    unknown = sorted(set(new_classes) - set(old_classes))
    if unknown:
        raise UserError(
            f"bct cannot be used here: the old model does not know {len(unknown)} of the "
            f"{len(new_classes)} new classes, first {unknown[0]!r}; use unibct"
        )


def _any_classes(old_classes: Sequence[str], new_classes: Sequence[str]) -> None:
    """Most methods work whatever the old model was trained on."""


@dataclass(frozen=True)
class MethodEntry:
    """How a method is made, and what it needs.

    Attributes:
        make: builds it from what the old model knows.
        needs_old_model: whether there must be an old model.
        needs_old_embeddings: whether the new training set is embedded by the old model.
        check_classes: refuses old and new class names that it cannot work with.
    """

    make: Callable[[OldKnowledge, Settings], Method]
    needs_old_model: bool = True
    needs_old_embeddings: bool = True
    check_classes: Callable[[Sequence[str], Sequence[str]], None] = _any_classes


METHODS: dict[str, MethodEntry] = {
    "none": MethodEntry(lambda old, settings: Method(), False, False),
    "regress": MethodEntry(Regress),
    "contrast": MethodEntry(Contrast),
    "bct": MethodEntry(Bct, needs_old_embeddings=False, check_classes=require_known_classes),
    "unibct-centroid": MethodEntry(partial(Prototypes, kind="centroid")),
    "unibct-drop": MethodEntry(partial(Prototypes, kind="drop")),
    "unibct": MethodEntry(partial(Prototypes, kind="structural")),
}


DEFAULT_METHOD = "unibct"
NO_METHOD = "none"


def find_method(name: str) -> MethodEntry:
    """The method called ``name``, or an error that lists the names there are."""
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]
