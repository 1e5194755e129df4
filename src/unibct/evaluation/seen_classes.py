"""How many of the test classes a model was trained on.

On classes that a model was trained on, every number promises more than the model holds on new
ones. So each evaluation counts them, and refuses if they are the majority.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Floats, checked_embeddings
from unibct.data.image_set import class_identities
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses, identity_digests
from unibct.embeddings.folder import Embeddings
from unibct.errors import UserError


@dataclass(frozen=True)
class SeenClasses:
    """How many test classes a model was trained on.

    Attributes:
        count: of those that are known; None if nothing is known.
        classes: how many test classes there are; None if they have no names.
        unknown: why more of them may have been trained on; None if that is excluded.
        kind: what the classes are called.
    """

    count: int | None
    classes: int | None
    unknown: str | None = None
    kind: str = "classes"

    @property
    def note(self) -> str:
        """The count in words."""
        if self.count is None:
            return f"whether a model was trained on test {self.kind} is unknown: {self.unknown}"
        counted = f"{self.count or 'none'} of the {self.classes} test {self.kind}"
        if self.unknown is not None:
            return f"at least {counted} were in a model's training set ({self.unknown})"
        return f"{counted} {'was' if self.count < 2 else 'were'} in a model's training set"

    def require_minority(self, *, allowed: bool = False, which: str = "test classes") -> None:
        """Refuse classes that are mostly training classes, unless it is allowed.

        Args:
            allowed: by the user.
            which: what to call them.
        """
        if allowed or self.count is None or self.classes is None:
            return
        if 2 * self.count > self.classes:
            raise UserError(
                f"{self.count} of the {self.classes} {which} were in a model's training set: "
                "the numbers would say little about new classes. Set classes aside with "
                "`unibct split --hold-out`, or go on with --seen-classes (seen_classes=True)"
            )


def count_seen_classes(
    class_names: Sequence[str], class_source: str | None, models: Mapping[str, TrainingClasses]
) -> SeenClasses:
    """Count the test classes that any of the models was trained on.

    Args:
        class_names: of the test classes.
        class_source: what numbered them, see ``ImageSet``.
        models: the training classes of each model, by its name in notes.
    """
    digests = identity_digests(class_identities(class_names, class_source))
    count = sum(any(digest in model.digests for model in models.values()) for digest in digests)
    doubts = [
        doubt
        for name, training in models.items()
        if (doubt := _doubt(name, training, class_source)) is not None
    ]
    unknown = doubts[0] if doubts else None
    return SeenClasses(count or (0 if unknown is None else None), len(class_names), unknown)


def _doubt(name: str, training: TrainingClasses, class_source: str | None) -> str | None:
    """Say why a model may have been trained on more test classes than can be counted."""
    if not training.complete:
        return f"the {name} model's training classes are not recorded"
    if training.sources - {class_source}:
        return f"the {name} model's training set and the test set name their classes differently"
    return None


@dataclass(frozen=True)
class ModelsUnderTest:
    """What is tested: vectors of the same images by several models.

    Attributes:
        vectors: (images, dim) of each model, by its name.
        labels: (images,) the classes 0…C-1.
        seen: the count of seen classes.
    """

    vectors: dict[str, Floats]
    labels: Any
    seen: SeenClasses


def models_under_test(
    models: Mapping[str, Any], labels: Any, *, seen_classes: bool
) -> ModelsUnderTest:
    """Return the vectors of all models, and refuse if most test classes were trained on.

    Args:
        models: for each model an ``Embeddings``, or an array, whose classes have no identity.
        labels: (images,) integers 0…C-1; None to take those of the first embeddings with classes.
        seen_classes: go on even if most test classes were trained on.
    """
    known = {name: model for name, model in models.items() if isinstance(model, Embeddings)}
    first = next(iter(known.values()), None)
    for name, model in known.items():
        if first is not None and model.ids != first.ids:
            raise UserError(
                f"the embeddings of the {name} model are not of the same images in the same order "
                "as the others; use Embeddings.of_images"
            )
    if labels is None:
        labelled = next((model for model in known.values() if model.class_names), None)
        if labelled is None:
            what = "arrays have none" if first is None else "the embeddings have no classes"
            raise UserError(f"labels are missing: {what}")
        labels = np.unique(labelled.labels, return_inverse=True)[1]
    seen = _seen(models, known)
    seen.require_minority(allowed=seen_classes)
    vectors = {
        name: checked_embeddings(known[name].vectors if name in known else model, name)
        for name, model in models.items()
    }
    return ModelsUnderTest(vectors, labels, seen)


def _seen(models: Mapping[str, Any], known: Mapping[str, Embeddings]) -> SeenClasses:
    """Count the seen classes; embeddings that know where their classes come from name them."""
    if not known:
        return SeenClasses(None, None, "arrays do not say")
    named = [model for model in known.values() if model.class_names]
    if not named:
        return SeenClasses(None, None, "the embeddings have no classes")
    naming = max(named, key=lambda model: model.training_classes != UNKNOWN_CLASSES)
    labels: list[int] = np.unique(naming.labels).tolist()
    names = [naming.class_names[label] for label in labels]
    training = {
        name: known[name].training_classes if name in known else UNKNOWN_CLASSES for name in models
    }
    return count_seen_classes(names, naming.class_source, training)
