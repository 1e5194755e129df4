"""What every compatibility method is, what it is made from, and what it is told in each step."""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from unibct.arrays import is_tensor
from unibct.distributed.class_shards import ClassPart
from unibct.distributed.ranks import ALONE, Ranks
from unibct.losses.sharded_arcface import sharded_arcface
from unibct.prototypes.class_prototypes import class_prototypes


@dataclass(frozen=True)
class OldKnowledge:
    """What the old model says of the new training set.

    Attributes:
        embeddings: (images, dim) the old model's embeddings of the new training set, a tensor on
            the device or rows on disk; (0, dim) for a method that says it needs none.
        labels: (images,) the classes of the new training set, 0…C-1.
        class_names: the names of those classes.
        old_class_names: the classes that the old model was trained on.
        old_class_weights: (old classes, dim) its classifier's rows.
        flipped: (images, dim) its embeddings of the mirrored images, where training mirrors them.
        ranks: over which the classes are spread.
    """

    embeddings: Any
    labels: Tensor
    class_names: tuple[str, ...]
    old_class_names: tuple[str, ...]
    old_class_weights: Tensor | None
    flipped: Any = None
    ranks: Ranks = ALONE

    @property
    def own_classes(self) -> range:
        """The classes whose vectors this rank holds."""
        return self.ranks.share(len(self.class_names))

    def rows(self, rows: Tensor) -> Tensor:
        """(rows, dim) the old embeddings of some images as they are."""
        return self._rows_of(self.embeddings, rows)

    def of(self, batch: "Batch") -> Tensor:
        """(batch, dim) the old embeddings of a batch's images as the batch shows them."""
        plain = self.rows(batch.rows)
        if self.flipped is None or batch.flipped is None:
            return plain
        return torch.where(batch.flipped[:, None], self._rows_of(self.flipped, batch.rows), plain)

    def _rows_of(self, vectors: Any, rows: Tensor) -> Tensor:
        if is_tensor(vectors):
            return cast(Tensor, vectors)[rows]
        return torch.from_numpy(vectors[rows.cpu().numpy()]).to(self.labels.device)

    def whole(self) -> Tensor:
        """(images, dim) all old embeddings, on the device."""
        if is_tensor(self.embeddings):
            return self.embeddings
        return torch.from_numpy(np.array(self.embeddings)).to(self.labels.device)

    def prototypes(self, kind: str, settings: "Settings", new: Any = None) -> Tensor:
        """(own classes, dim) this rank's prototypes; see ``class_prototypes``."""
        in_memory = is_tensor(self.embeddings) and self.ranks.world == 1
        prototypes = class_prototypes(
            self.embeddings,
            self.labels,
            new=new,
            kind=kind,
            tau=settings.tau,
            lam=settings.lam,
            drop=settings.drop,
            classes=None if in_memory else self.own_classes,
        )
        return torch.as_tensor(prototypes, device=self.labels.device)


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
        class_weights: (classes, dim) the new classifier's rows that are in use, with gradients.
        progress: share of the whole training that is done, 0 to 1.
        rng: for methods that draw; the same in a resumed run.
        flipped: (batch,) which images are mirrored; None if none is.
        part: which classes this rank looks at; None: all of them.
    """

    embeddings: Tensor
    labels: Tensor
    rows: Tensor
    class_weights: Tensor | None = None
    progress: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    flipped: Tensor | None = None
    part: ClassPart | None = None

    @property
    def ranks(self) -> Ranks:
        """That share the batch; this object holds one's part of it."""
        return ALONE if self.part is None else self.part.ranks

    def arcface(self, embeddings: Tensor, rows: Tensor, settings: Settings) -> Tensor:
        """ArcFace of this batch's classes against class vectors that are in use."""
        part = self.part or ClassPart(len(rows))
        angular = {"scale": settings.scale, "margin": settings.margin}
        return sharded_arcface(embeddings, rows, self.labels, part, **angular)

    def in_use(self, own: Tensor) -> Tensor:
        """Of the class vectors that this rank holds, the ones that this step looks at."""
        return own if self.part is None else self.part.rows(own)


class Method:
    """No compatibility: the upper bound of the self test, and the base of the others."""

    needs_new_embeddings = False  # at each refresh

    def parameters(self) -> list[nn.Parameter]:
        """What the method itself learns; trained with the network, gone with the training."""
        return []

    def refresh(self, new_embeddings: Any) -> None:
        """Renew what depends on the new model, at the beginning of a refresh epoch.

        Args:
            new_embeddings: (images, dim) in evaluation mode, without augmentation, in the form of
                the old ones; only for methods that ask for them.
        """

    def classified(self, batch: Batch) -> Tensor:
        """(batch, dim) what the new classifier is trained on: the batch's new embeddings."""
        return batch.embeddings

    def loss(self, batch: Batch) -> Tensor:
        """L_comp of a batch, a scalar."""
        return batch.embeddings.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint must keep, the same on each rank."""
        return {}

    def class_state(self) -> dict[str, Tensor]:
        """(own classes, …) tensors that a checkpoint must keep, each rank its classes' rows."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``state`` and ``class_state`` gave."""
