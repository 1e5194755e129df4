"""A compatibility method as a plain PyTorch loss, for training loops of your own."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unibct.arrays import checked_labels
from unibct.errors import UserError
from unibct.methods import DEFAULT_METHOD, find_method
from unibct.methods.base import Batch, Method, OldEmbeddings, Settings
from unibct.prototypes.inputs import float_tensor


class CompatibilityLoss(nn.Module):
    """L_comp of a method: add it to your own classification loss.

    It is computed in single precision, whatever the type of the embeddings, and inside
    ``torch.autocast`` too; ``to``, ``double`` and ``half`` change the device only.

    Attributes:
        method: the method behind it.

    Args:
        method: as for ``find_method``; one that needs nothing of the old model but embeddings.
        old: (images, dim) the old model's embeddings of the whole training set.
        labels: (images,) their classes, 0…C-1.
        scale: ArcFace's scale.
        margin: ArcFace's margin.
        tau: temperature of structural prototypes.
        lam: share of the neighbours in structural prototypes.
        drop: share of the farthest images that ``unibct-drop`` leaves out.
    """

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        *,
        old: Any,
        labels: Any,
        scale: float = 64.0,
        margin: float = 0.5,
        tau: float = 0.05,
        lam: float = 0.9,
        drop: float = 0.1,
    ) -> None:
        super().__init__()
        entry = find_method(method)
        if entry.needs_old_classifier:
            raise UserError(f"{method} needs the old model's class weights; use unibct.train")
        if entry.recipe:
            raise UserError(f"{method}: {', '.join(entry.recipe)} is a setting of unibct.train")
        old = F.normalize(float_tensor(old, "old").float(), dim=1)
        classes = _checked_classes(labels, len(old)).to(old.device)
        self._shape = (int(classes.max()) + 1, old.shape[1])
        names = tuple(str(number) for number in range(self._shape[0]))
        knowledge = OldEmbeddings(old, classes, names, names, None)
        settings = Settings(scale=scale, margin=margin, tau=tau, lam=lam, drop=drop)
        with _without_autocast(old.device.type):
            self.method: Method = entry.make(knowledge, settings)
        if self.method.replaces_embeddings:
            raise UserError(f"{method} changes the classification loss; use unibct.train")
        self._learnt = nn.ParameterList(self.method.parameters())
        self._place: Tensor
        self.register_buffer("_place", old.new_empty(0), persistent=False)
        if not self.method.needs_new_embeddings:
            with _without_autocast(old.device.type):
                self.method.refresh(None)

    def refresh(self, new_embeddings: Any) -> None:
        """Look at the new model again; call it before training and some epochs later.

        Args:
            new_embeddings: (images, dim) of the whole training set, in evaluation mode.
        """
        vectors, device = None, self._place.device
        if self.method.needs_new_embeddings:
            vectors = float_tensor(new_embeddings, "new_embeddings").float().to(device)
        with _without_autocast(device.type):
            self.method.refresh(vectors)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Let the method follow where ``to`` or ``cuda`` puts the module; its types stay."""
        before = self._place.device
        device: torch.device = fn(self._place).device

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        super()._apply(moved, recurse)
        if self._place.device != before:
            self.method.to(self._place.device)
            self._learnt = nn.ParameterList(self.method.parameters())
        return self

    def classified(self, embeddings: Tensor) -> Tensor:
        """Return what your classification loss is to take instead of the embeddings.

        ``unibct-plus`` measures from the old embeddings' mean. This matters if they all lie in
        nearly the same direction; for the other methods it returns the embeddings as they are.

        Args:
            embeddings: (batch, dim) of the new model, with gradients.
        """
        nothing = torch.empty(0, dtype=torch.int64)
        return self.method.classified(Batch(embeddings, nothing, nothing))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        rows: Tensor,
        class_weights: Tensor | None = None,
        progress: float = 0.0,
    ) -> Tensor:
        """Return L_comp of a batch, a scalar.

        Args:
            embeddings: (batch, dim) of the new model, with gradients.
            labels: (batch,) their classes.
            rows: (batch,) the rows of the images in the training set.
            class_weights: (classes, dim) of your classifier, for ``unibct-plus`` and ``lce``.
            progress: how much of the training is done, 0 to 1; for methods that change with it.
        """
        self._require_shapes(embeddings, labels, rows, class_weights)
        weights = None if class_weights is None else class_weights.float()
        batch = Batch(embeddings.float(), labels.long(), rows.long(), weights, progress)
        with _without_autocast(embeddings.device.type):
            return self.method.loss(batch)

    def _require_shapes(
        self, embeddings: Tensor, labels: Tensor, rows: Tensor, class_weights: Tensor | None
    ) -> None:
        """Refuse wrong shapes; values are not looked at, as the host would wait for the device."""
        classes, dim = self._shape
        if embeddings.ndim != 2 or embeddings.shape[1] != dim:
            raise UserError(
                f"embeddings must have the shape (batch, {dim}), as the old ones have dimension "
                f"{dim}, not {tuple(embeddings.shape)}"
            )
        for name, numbers in (("labels", labels), ("rows", rows)):
            if numbers.shape != embeddings.shape[:1]:
                raise UserError(
                    f"{name} must have the shape ({len(embeddings)},), one for each of the "
                    f"embeddings, not {tuple(numbers.shape)}"
                )
        if class_weights is not None and (
            class_weights.ndim != 2 or class_weights.shape[1] != dim or len(class_weights) < classes
        ):
            raise UserError(
                f"class_weights must have the shape ({classes}, {dim}), a row for each class, not "
                f"{tuple(class_weights.shape)}"
            )


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which single precision stays so."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _checked_classes(labels: Any, images: int) -> Tensor:
    """Return the labels (images,) as int64, all of them from 0 up."""
    numbers = checked_labels(labels, images)
    if not images:
        raise UserError("old is empty: at least one image is needed")
    if numbers.min() < 0:
        raise UserError(f"labels has the negative value {int(numbers.min())}; labels are 0…C-1")
    return torch.as_tensor(numbers)
