"""The classes that a run sets aside: it never trains on them, and measures recall@1 on them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Ints
from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches
from unibct.data.training_classes import TrainingClasses, identity_digests
from unibct.embeddings.recall import SAMPLE_IMAGES, sample_classes
from unibct.errors import UserError

AUTOMATIC_SHARE = 0.1
UNLEARNT = "unlearnt"  # in a description: earlier versions drew from all classes
_AUTOMATIC_CLASSES = 10  # with fewer, recall@1 says little: nothing is set aside by default
_LEFT_CLASSES = 2  # training needs two at least, and recall@1 as well


@dataclass(frozen=True)
class SetAside:
    """A data set in two parts without a class in common."""

    training: ImageSet
    # Whole classes of those that were set aside, ``SAMPLE_IMAGES`` at most: recall@1 is measured
    # on them. None if no class was set aside.
    validation: ImageSet | None = None
    share: float = 0.0  # of the classes, as it was asked for; 0 if none was set aside
    classes: int = 0  # how many were set aside
    images: int = 0  # of these classes
    # Whether they were drawn from those that the first weights have not learnt; None if these are
    # random.
    unlearnt: bool | None = None

    def description(self, pixels: PixelBatches) -> dict[str, Any]:
        """Return plain values that tell the validation images, read as ``pixels``, from others."""
        return {
            "share": self.share,
            "classes": self.classes,
            "images": self.images,
            "measured_images": len(pixels.images),
            "pixels": pixels.digest,
            **({UNLEARNT: True} if self.unlearnt else {}),
        }


def set_aside(
    images: ImageSet, share: float | None, seed: int, learnt: TrainingClasses | None = None
) -> SetAside:
    """Divide a data set into classes to train on and classes to measure on.

    A run that starts from trained weights measures on classes that these have not learnt, if there
    are enough: on half of those at most, because the others are what the new model can learn. Then
    fewer classes than the share may be set aside.

    Args:
        images: the data set.
        share: the share of the classes to set aside, from 0 to less than 1. None means 0.1 if
            that is enough classes with two images or more, else 0. For finished vectors None means
            0: they have no pixels to compare with.
        seed: chooses the classes.
        learnt: what the run's first weights have learnt from; None if they are random.
    """
    if share is None and images.vector_dim is not None:
        return SetAside(images)
    wanted = AUTOMATIC_SHARE if share is None else share
    if not 0 <= wanted < 1:
        raise UserError(
            f"validation = {wanted:g}: write the share of the classes to set aside, such as 0.1, "
            "or 0 for none"
        )
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    eligible = np.flatnonzero(sizes > 1)
    count = min(int(wanted * len(sizes) + 1e-9), len(eligible))
    if wanted == 0 or (share is None and count < _AUTOMATIC_CLASSES):
        return SetAside(images)
    if count < _LEFT_CLASSES or len(sizes) - count < _LEFT_CLASSES:
        raise UserError(
            f"validation = {wanted:g} sets {count} of the {len(sizes)} classes of {images.name} "
            f"aside ({len(eligible)} have two images or more): two classes are needed to measure "
            "on and two to train on; give another share, or 0 for none"
        )
    unlearnt = None
    if learnt is not None:
        others = classes_not_learnt(images, eligible, learnt)
        fewer = min(count, len(others) // 2)
        unlearnt = fewer >= min(count, _AUTOMATIC_CLASSES)
        if unlearnt:
            eligible, count = others, fewer
    chosen = np.random.default_rng([seed, 0, 0, 3]).permutation(eligible)[:count]
    is_chosen = np.isin(images.labels, chosen)
    rows = np.flatnonzero(is_chosen)
    measured = rows[sample_classes(images.labels[rows], SAMPLE_IMAGES, seed=seed)]
    training, validation = images.select(np.flatnonzero(~is_chosen)), images.select(measured)
    return SetAside(training, validation, wanted, count, len(rows), unlearnt)


def classes_not_learnt(images: ImageSet, classes: Ints, learnt: TrainingClasses) -> Ints:
    """Return those of the classes that are known to be none of the learnt ones."""
    if not learnt.complete or not learnt.named_as(images.class_source):
        return classes[:0]
    identities = images.class_identities
    known = [bool(identity_digests([identities[int(c)]]) & learnt.digests) for c in classes]
    return classes[~np.array(known, dtype=bool)]
