"""The base class of compatibility methods, and what a method gets: once, and in each step."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unibct.arrays import is_tensor
from unibct.distributed.device import to_device
from unibct.distributed.ranks import ALONE, ClassesInUse, Ranks
from unibct.losses import sharded_arcface, unit_rows
from unibct.prototypes.class_prototypes import class_prototypes

_MEAN_IMAGES = 65_536  # enough for the mean of any set


@dataclass(frozen=True)
class OldEmbeddings:
    """What the old model knows about the new training set."""

    # (images, dim) the old model's embeddings of the new training set, a tensor on the device or
    # rows on disk; (0, dim) for a method that needs none.
    embeddings: Any
    labels: Tensor  # (images,) the classes of the new training set, 0…C-1
    # The identities of those classes, see ``ImageSet.class_identities``.
    class_names: tuple[str, ...]
    # The identities of the classes that the old model was trained on.
    old_class_names: tuple[str, ...]
    # (old classes, dim) the rows of the old classifier, if they are known and the method needs
    # them.
    old_class_weights: Tensor | None
    # (images, dim) the old model's embeddings of the mirrored images, if training mirrors images.
    flipped: Any = None
    ranks: Ranks = ALONE  # the ranks that share the classes

    @property
    def own_classes(self) -> range:
        """The classes whose vectors this rank holds."""
        return self.ranks.share(len(self.class_names))

    def rows(self, rows: Tensor) -> Tensor:
        """Return the old embeddings of some images, not mirrored: (rows, dim) on the device.

        Embeddings on disk are read here and now. If ``rows`` are on the device, the host has to
        wait for them first.
        """
        return self._select(self.embeddings, rows)

    def of(self, batch: "Batch") -> Tensor:
        """Return the old embeddings of a batch's images, mirrored where they are: (batch, dim)."""
        if batch.old is not None:
            return batch.old
        plain = self.rows(batch.rows)
        if self.flipped is None or batch.flipped is None:
            return plain
        return torch.where(batch.flipped[:, None], self._select(self.flipped, batch.rows), plain)

    def read_ahead(
        self, rows: NDArray[np.int64], flipped: NDArray[np.bool_] | None
    ) -> NDArray[np.float32] | None:
        """Return what ``of`` will return for a batch, (batch, dim); may be called by any thread.

        It takes the batch's rows and which of its images are mirrored, both (batch,). None: the
        embeddings are on the device already.
        """
        if is_tensor(self.embeddings):
            return None
        vectors = np.array(self.embeddings[rows])
        if self.flipped is not None and flipped is not None:
            vectors[flipped] = self.flipped[rows[flipped]]
        return vectors

    def mean(self) -> Tensor:
        """Return the mean of the old embeddings of length 1, (dim,); a large set is sampled."""
        images = len(self.labels)
        count = min(images, _MEAN_IMAGES)
        # In integers: float32 cannot tell the rows of more than 16 million images apart.
        rows = torch.arange(count) * (images - 1) // max(count - 1, 1)
        return unit_rows(self.rows(rows)).mean(dim=0)

    def _select(self, vectors: Any, rows: Tensor) -> Tensor:
        if is_tensor(vectors):
            return cast(Tensor, vectors)[to_device(rows, self.labels.device)]
        return to_device(torch.from_numpy(vectors[rows.cpu().numpy()]), self.labels.device)

    def to(self, device: torch.device) -> "OldEmbeddings":
        """Return the same on another device; rows on disk stay there."""
        moved = {name: v.to(device) for name, v in vars(self).items() if is_tensor(v)}
        return replace(self, **moved)

    def whole(self) -> Tensor:
        """Return all old embeddings, on the device: (images, dim)."""
        if is_tensor(self.embeddings):
            return self.embeddings
        return torch.from_numpy(np.array(self.embeddings)).to(self.labels.device)

    def prototypes(self, kind: str, settings: "Settings", new: Any = None) -> Tensor:
        """(own classes, dim) this rank's prototypes; see ``class_prototypes``."""
        in_memory = is_tensor(self.embeddings) and self.ranks.world == 1
        classes = None if in_memory else self.own_classes
        prototypes = class_prototypes(
            self.labels,
            old=self.embeddings,
            new=new,
            kind=kind,
            tau=settings.tau,
            lam=settings.lam,
            drop=settings.drop,
            classes=classes,
        )
        return torch.as_tensor(prototypes, device=self.labels.device)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The recipe's numbers that methods use."""

    scale: float
    margin: float
    tau: float
    lam: float
    drop: float
    warm_start: bool = False  # whether training starts from the old weights


@dataclass(frozen=True)
class Batch:
    """This rank's part of the images of one step."""

    embeddings: Tensor  # (batch, dim) of the new model, with gradients
    labels: Tensor  # (batch,) the classes of the images
    rows: Tensor  # (batch,) the rows of the images in the training set
    # (classes in use, dim) of the new classifier, with gradients.
    class_weights: Tensor | None = None
    progress: float = 0.0  # how much of the whole training is done, 0 to 1
    # The generator for methods that draw; a resumed run draws the same numbers.
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    flipped: Tensor | None = None  # (batch,) which images are mirrored; None if none is
    # The classes that this rank uses in this step; None means all classes.
    part: ClassesInUse | None = None
    # (batch, dim) the old embeddings of the images, if they were read ahead.
    old: Tensor | None = None
    # (all ranks' batch,) the rows of all ranks' images, on the host; None if they have to be
    # gathered.
    whole_batch: Tensor | None = None
    # Whether embeddings and class weights come from another dimension, by a projection into the old
    # space.
    projected: bool = False

    @property
    def ranks(self) -> Ranks:
        """The ranks that share the batch."""
        return ALONE if self.part is None else self.part.ranks

    def rows_of_all_ranks(self) -> Tensor:
        """Return the rows of all ranks' images, on the host."""
        if self.whole_batch is None:
            return self.ranks.gathered(self.rows).cpu()
        return self.whole_batch

    def arcface(
        self,
        embeddings: Tensor,
        class_vectors: Tensor,
        settings: Settings,
        *,
        unit_length: bool = False,
    ) -> Tensor:
        """Return ArcFace of new or old embeddings (batch, dim) of this batch's images.

        ``class_vectors`` are (classes in use, dim), see ``in_use``; for ``unit_length`` see
        ``sharded_arcface``.
        """
        part = self.part or ClassesInUse(len(class_vectors))
        how = {"scale": settings.scale, "margin": settings.margin}
        return sharded_arcface(
            embeddings, class_vectors, self.labels, part, unit_length=unit_length, **how
        )

    def in_use(self, class_vectors: Tensor) -> Tensor:
        """Select the classes of this step: (own classes, dim) -> (classes in use, dim)."""
        return class_vectors if self.part is None else self.part.rows(class_vectors)


class Method:
    """A method without compatibility: the upper bound of the self test, and the base of the others.

    A method is made once, before training. The training loop calls ``refresh`` at the refresh
    epochs, and ``classified`` and ``loss`` in each step.
    """

    needs_new_embeddings = False  # whether refresh gets the new model's embeddings
    replaces_embeddings = False  # whether the classifier sees other embeddings than the network's
    # What the method looks up for each image of a batch, so that it can be read ahead.
    old_of_images: OldEmbeddings | None = None

    def parameters(self) -> list[nn.Parameter]:
        """Return what the method itself learns. It is trained with the network, then discarded."""
        return []

    def to(self, device: torch.device) -> None:
        """Move what the method holds to another device."""
        moved: dict[int, Any] = {}  # by identity: some attributes are the same object
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor | nn.Module | OldEmbeddings):
                if isinstance(value, nn.Parameter) and value.device != device:
                    moved.setdefault(id(value), nn.Parameter(value.detach().to(device)))
                elif id(value) not in moved:
                    moved[id(value)] = value.to(device)
                setattr(self, name, moved[id(value)])

    def refresh(self, new_embeddings: Any) -> None:
        """Update what depends on the new model, at the beginning of a refresh epoch.

        ``new_embeddings`` are (images, dim) in evaluation mode, without augmentation, a tensor or
        rows on disk like the old ones; None unless ``needs_new_embeddings``.
        """

    def classified(self, batch: Batch) -> Tensor:
        """Return what the new classifier is trained on, (batch, dim): the new embeddings."""
        return batch.embeddings

    def loss(self, batch: Batch) -> Tensor:
        """Return L_comp of a batch, a scalar."""
        return batch.embeddings.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """Return tensors for the checkpoint that are the same on each rank."""
        return {}

    def class_state(self) -> dict[str, Tensor]:
        """Return tensors for the checkpoint that hold a row per class of this rank."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` and ``class_state`` returned."""


def no_compatibility(old: OldEmbeddings, settings: Settings) -> Method:
    """Return the method ``none``, which ignores the old model."""
    return Method()
