"""How many of the test classes a model was trained on.

On classes that a model was trained on, every number promises more than the model holds on new
ones. So each evaluation counts them, and refuses if they are the majority.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.arrays import Floats, Ints, checked_embeddings
from unibct.data.choices import Choice, choice_on_rows
from unibct.data.image_set import class_identities, identity_digests
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses
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
        if self.unknown is not None:
            return f"at least {self._counted} were in a model's training set ({self.unknown})"
        return f"{self._counted} {'was' if self.count < 2 else 'were'} in a model's training set"

    @property
    def _counted(self) -> str:
        return f"{self.count or 'none'} of the {self.classes} test {self.kind}"

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
        models: those that know more than their vectors.
    """

    vectors: dict[str, Floats]
    labels: Any
    seen: SeenClasses
    models: Mapping[str, Embeddings]

    def choice(self, what: str, data: str | None = None) -> Choice:
        """Return a choice that is made on these images, see ``Choice``."""
        named_by = _naming(self.models)
        if named_by is None:
            choice = Choice(what, data)
        else:
            classes = named_by.labels, named_by.class_names, named_by.class_source
            choice = choice_on_rows(what, data, named_by.ids, *classes)
        return choice.with_vectors(self.vectors["old"])


def models_under_test(
    models: Mapping[str, Any],
    labels: Any,
    *,
    seen_classes: bool,
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
        labels = _common_labels(known)
    seen = _seen(models, known)
    seen.require_minority(allowed=seen_classes)
    vectors = {
        name: checked_embeddings(known[name].vectors if name in known else model, name)
        for name, model in models.items()
    }
    return ModelsUnderTest(vectors, labels, seen, known)


def _common_labels(known: Mapping[str, Embeddings]) -> Ints:
    """Return the classes of embeddings of the same images, which must agree on them."""
    labelled = {name: model for name, model in known.items() if model.class_names}
    if not labelled:
        what = "the embeddings have no classes" if known else "arrays have none"
        raise UserError(f"labels are missing: {what}")
    (first, named), *others = labelled.items()
    labels = np.unique(named.labels, return_inverse=True)[1]
    for name, other in others:
        # Their names may differ, but not which images are of the same class.
        pairs = len(np.unique(labels * len(other.class_names) + other.labels))
        if {len(np.unique(side)) for side in (labels, other.labels)} != {pairs}:
            raise UserError(
                f"the embeddings of the {first} and the {name} model have other classes for the "
                "same images; give labels, or embed the same data with both"
            )
    return labels


def _naming(known: Mapping[str, Embeddings]) -> Embeddings | None:
    """Return the embeddings that name the classes, rather ones that know where these come from."""
    named = [model for model in known.values() if model.class_names]
    return max(named, key=lambda model: model.training_classes != UNKNOWN_CLASSES, default=None)


def _seen(models: Mapping[str, Any], known: Mapping[str, Embeddings]) -> SeenClasses:
    """Count the seen classes."""
    if not known:
        return SeenClasses(None, None, "arrays do not say")
    named_by = _naming(known)
    if named_by is None:
        return SeenClasses(None, None, "the embeddings have no classes")
    training = {
        name: known[name].training_classes if name in known else UNKNOWN_CLASSES for name in models
    }
    labels: list[int] = np.unique(named_by.labels).tolist()
    names = [named_by.class_names[label] for label in labels]
    return count_seen_classes(names, named_by.class_source, training)
