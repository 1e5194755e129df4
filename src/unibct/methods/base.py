"""What every compatibility method is, what it is made from, and what it is told in each step."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn


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
        flipped: (images, dim) its embeddings of the mirrored images, where training mirrors them.
    """

    embeddings: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    old_class_names: tuple[str, ...]
    old_class_weights: Tensor | None
    flipped: Tensor | None = None

    def of(self, batch: "Batch") -> Tensor:
        """(batch, dim) the old embeddings of a batch's images as the batch shows them."""
        plain = self.embeddings[batch.rows]
        if self.flipped is None or batch.flipped is None:
            return plain
        return torch.where(batch.flipped[:, None], self.flipped[batch.rows], plain)


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
    """One step's images.

    Attributes:
        embeddings: (batch, dim) of the new model, with gradients.
        labels: (batch,) their classes.
        rows: (batch,) their rows in the training set.
        class_weights: (classes, dim) the new classifier's rows, with gradients.
        progress: share of the whole training that is done, 0 to 1.
        rng: for methods that draw; the same in a resumed run.
        flipped: (batch,) which images are mirrored; None if none is.
    """

    embeddings: Tensor
    labels: Tensor
    rows: Tensor
    class_weights: Tensor | None = None
    progress: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    flipped: Tensor | None = None


class Method:
    """No compatibility: the upper bound of the self test, and the base of the others."""

    needs_new_embeddings = False  # at each refresh

    def parameters(self) -> list[nn.Parameter]:
        """What the method itself learns; trained with the network, gone with the training."""
        return []

    def refresh(self, new_embeddings: Tensor | None) -> None:
        """Renew what depends on the new model, at the beginning of a refresh epoch.

        Args:
            new_embeddings: (images, dim) in evaluation mode, without augmentation; only for
                methods that ask for them.
        """

    def classified(self, batch: Batch) -> Tensor:
        """(batch, dim) what the new classifier is trained on: the batch's new embeddings."""
        return batch.embeddings

    def loss(self, batch: Batch) -> Tensor:
        """L_comp of a batch, a scalar."""
        return batch.embeddings.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint must keep."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``state`` gave."""
