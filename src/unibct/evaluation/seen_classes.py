"""Which test classes a model was trained on, and what was chosen on them.

There every number promises more than the model holds on new classes. So each evaluation counts the
classes that a model has seen, draws its verdict over the others, and refuses if the seen ones are
the majority. Every choice is compared with the test set in the same way: that of a model's weights,
its best epoch and its score scale, that of blended queries, and a kept score map.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, checked_embeddings, checked_labels
from unibct.data.image_set import ImageSet, class_identities
from unibct.data.training_classes import (
    SCORE_MAP_FITTED,
    SCORE_SCALE_MEASURED,
    UNKNOWN_CLASSES,
    UNKNOWN_SOURCE,
    Choice,
    TrainingClasses,
    choice_on_rows,
    identity_digests,
    known_source,
)
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.evaluation.score_map import ScoreMap

FEWEST_TESTED = 2  # classes: a search among the images of one finds nothing wrong


Basis: TypeAlias = Literal["unseen", "unknown", "overridden"]


@dataclass(frozen=True)
class SeenClasses:
    """How many of the test classes that have queries a model was trained on."""

    count: int | None  # of those that are known; None if nothing is known
    classes: int | None  # how many test classes have queries; None if they have no names
    unknown: str | None = None  # why more may have been trained on; None if that is excluded
    kind: str = "classes"  # what the classes are called
    overridden: bool = False  # too many for a verdict, and the user went on all the same

    @property
    def basis(self) -> Basis:
        """What the verdict rests on: unknown is not unseen."""
        if self.overridden:
            return "overridden"
        return "unseen" if self.unknown is None and self.count is not None else "unknown"

    @property
    def tested(self) -> int | None:
        """How many classes with queries the verdict is over; None if they are not counted."""
        if self.classes is None:
            return None
        return self.classes - ((self.count or 0) if self.leaves_enough else 0)

    @property
    def leaves_enough(self) -> bool:
        """Whether the other classes can be tested alone."""
        return self.classes is not None and self.classes - (self.count or 0) >= FEWEST_TESTED

    @property
    def counted(self) -> str:
        """The count in words, alone."""
        counted = f"{self.count or 'none'} of the {self.classes} test {self.kind}"
        if self.count is None:
            return f"whether a model was trained on test {self.kind} is unknown: {self.unknown}"
        if self.unknown is not None:
            return f"at least {counted} were in a model's training set ({self.unknown})"
        return f"{counted} {'was' if self.count < 2 else 'were'} in a model's training set"

    @property
    def note(self) -> str:
        """The count in words, and what it means for the verdict."""
        notes = [self.counted]
        if self.count and self.tested == self.classes:
            notes.append(f"the verdict is over them, and says nothing about other {self.kind}")
        elif self.count:
            others = "others" if self.unknown is None else "others, as far as is known"
            notes.append(f"the verdict is over the {self.tested} {others}")
        if self.basis == "unknown":
            notes.append(
                f"the verdict holds for new {self.kind} only if no model was trained on those of "
                "the test"
            )
        return "; ".join(notes)

    def require_minority(
        self, *, allowed: bool = False, which: str = "test classes"
    ) -> "SeenClasses":
        """Refuse classes that are mostly training classes, or mark them if the user allows that."""
        if not self.count or self.classes is None:
            return self
        if 2 * self.count <= self.classes and self.leaves_enough:
            return self
        if allowed:
            return replace(self, overridden=True)
        raise UserError(
            f"{self.count} of the {self.classes} {which} were in a model's training set: "
            "the numbers would say little about new classes. Set classes aside with "
            "`unibct split --hold-out`, or go on with seen_classes=True"
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "basis": self.basis,
            "seen": self.count,
            "tested": self.tested,
            "unknown": self.unknown,
        }


def count_seen_classes(
    class_names: Sequence[str], class_source: str | None, models: Mapping[str, TrainingClasses]
) -> SeenClasses:
    """Count those of the test classes with queries that any of the models was trained on.

    ``class_source`` is what numbered them, see ``ImageSet``; ``models`` has the training classes of
    each model, by its name in notes.
    """
    is_seen, unknown = _seen_of(class_names, class_source, models)
    return _counted(is_seen, unknown)


def classes_with_queries(images: ImageSet) -> list[str]:
    """Return the names of the classes that have queries: one image of each is in the gallery."""
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    return [name for name, size in zip(images.class_names, sizes, strict=True) if size > 1]


def _counted(is_seen: Sequence[bool], unknown: str | None) -> SeenClasses:
    count = sum(is_seen)
    return SeenClasses(count or (0 if unknown is None else None), len(is_seen), unknown)


def _seen_of(
    class_names: Sequence[str], class_source: str | None, models: Mapping[str, TrainingClasses]
) -> tuple[list[bool], str | None]:
    """Return whether each class is known to be seen, and why others may be; see above."""
    trained = frozenset[str]().union(*(model.digests for model in models.values()))
    identities = class_identities(class_names, class_source)
    is_seen = [identity_digests([identity]) <= trained for identity in identities]
    source = known_source(class_names, class_source)
    doubts = (_doubt(name, training, source) for name, training in models.items())
    return is_seen, next((doubt for doubt in doubts if doubt is not None), None)


def _doubt(name: str, training: TrainingClasses, class_source: str | None) -> str | None:
    """Say why a model may have been trained on more test classes than can be counted."""
    if not training.complete and training.digests:
        return (
            f"what the first weights, the vectors or the map of the {name} model have learnt from "
            "is not recorded"
        )
    if not training.complete:
        return f"the {name} model's training classes are not recorded"
    if not training.named_as(class_source):
        return (
            f"the {name} model's training set and the test set name their classes differently, or "
            "only number them"
        )
    return None


@dataclass(frozen=True)
class ModelsUnderTest:
    """What is tested: vectors of the same images by several models."""

    vectors: dict[str, Floats]  # (images, dim) of each model, by its name
    labels: Ints  # (images,) the classes 0…C-1
    # (images,) whether a model is known to have been trained on the image's class; None if the
    # classes have no names.
    is_seen: NDArray[np.bool_] | None
    unknown: str | None  # why a model may have been trained on more; None if that is excluded
    known: Mapping[str, Embeddings]  # the models that are more than an array

    def seen_among(self, classes: Ints) -> SeenClasses:
        """Count the seen ones among some classes, those with queries."""
        if self.is_seen is None:
            return SeenClasses(None, None, self.unknown)
        is_seen = np.isin(np.unique(classes), self.labels[self.is_seen])
        return _counted(is_seen.tolist(), self.unknown)

    def choice(self, what: str, data: str | None = None, among: Ints | None = None) -> Choice:
        """Return the choice of something, in words, that is made on these images.

        ``data`` is their name; ``among`` are the places of those whose classes count, by default
        all.
        """
        named_by, choice = _naming(self.known), Choice(what, data)
        if named_by is not None:
            choice = choice_on_rows(
                what,
                data,
                named_by.ids,
                named_by.labels,
                named_by.class_names,
                named_by.class_source,
                among=among,
            )
        return choice.with_vectors(self.vectors["old"])


def models_under_test(models: Mapping[str, Any], labels: Any) -> ModelsUnderTest:
    """Return the vectors of all models, and which test classes they were trained on.

    A model is an ``Embeddings``, or an array, whose classes have no identity. ``labels``, (images,)
    integers 0…C-1, are by default those of the first embeddings with classes.
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
    vectors = {
        name: checked_embeddings(known[name].vectors if name in known else model, name)
        for name, model in models.items()
    }
    named_by = _naming(known)
    labels = checked_labels(labels, None if named_by is None else len(named_by.labels))
    if named_by is None:
        why = "the embeddings have no classes" if known else "arrays do not say"
        return ModelsUnderTest(vectors, labels, None, why, known)
    training = {
        name: known[name].training_classes if name in known else UNKNOWN_CLASSES for name in models
    }
    is_seen, unknown = _seen_of(named_by.class_names, named_by.class_source, training)
    # The labels that were given may number the classes in another way than the embeddings do.
    by_image: NDArray[np.bool_] = np.array(is_seen)[named_by.labels]
    return ModelsUnderTest(vectors, labels, by_image, unknown, known)


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


# What was chosen on test classes.


@dataclass(frozen=True)
class SeenChoice:
    """A choice, and on how many of the test classes it was made."""

    choice: Choice
    count: int | None  # how many test classes it was made on; None if that is not known
    classes: int | None  # how many test classes there are; None if that is not known
    same_images: bool  # whether it was made on the test images themselves

    @property
    def is_of_the_test(self) -> bool:
        """Whether it was made on the test images, or on most of the test classes."""
        most = self.count is not None and self.classes is not None and 2 * self.count > self.classes
        return self.same_images or most

    @property
    def note(self) -> str:
        """The count in words."""
        if self.same_images:
            where = f" ({self.choice.data})" if self.choice.data else ""
            return f"{self.choice.what} on the test images themselves{where}"
        if self.count is None:
            return (
                f"whether {self.choice.what} on test classes is unknown: they are not recorded, or "
                "not named alike"
            )
        counted = f"{self.choice.what} on {self.count or 'none'} of the {self.classes} test classes"
        return f"{counted}: there the numbers say little about others" if self.count else counted

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "what": self.choice.what,
            "data": self.choice.data,
            "seen_classes": self.count,
            "same_images": self.same_images,
        }


def choices_of(
    models: Mapping[str, TrainingClasses],
    *,
    alpha: Choice | None = None,
    score_map: ScoreMap | None = None,
    uses_scale: bool = False,
) -> list[Choice]:
    """Return every choice that a test relies on.

    ``models`` says what each model has learnt from, by its role: ``old``, ``new``, …; ``alpha`` is
    how the share of blended queries was chosen, if it was, ``score_map`` the map that was given.
    The score scale counts only if it is used, and only that of the new model.
    """
    choices: list[Choice] = []
    for role, learnt in models.items():
        used = learnt if uses_scale and role == "new" else learnt.without(SCORE_SCALE_MEASURED)
        choices += [choice.of_model(role) for choice in used.choices]
    if alpha is not None:
        choices.append(alpha)
    if score_map is not None:
        choices.append(score_map.fitted_on or Choice(SCORE_MAP_FITTED))
    return sorted(choices, key=lambda choice: choice.what)


def compared_choices(
    choices: Iterable[Choice], test: Choice, *, allowed: bool
) -> tuple[SeenChoice, ...]:
    """Compare choices with a test set, itself a choice on it; refuse what was made on the test."""
    compared = tuple(_compared(choice, test) for choice in choices)
    refused = [one.note for one in compared if one.is_of_the_test]
    if refused and not allowed:
        raise UserError(
            f"{'; '.join(refused)}: the numbers would say little about others. Choose on classes "
            "that are not tested, test on others, or go on with seen_classes=True"
        )
    return compared


def _compared(choice: Choice, test: Choice) -> SeenChoice:
    """Count the test classes that a choice was made on."""
    same_images = bool(choice.images & test.images)
    if choice.classes is None or test.classes is None:
        return SeenChoice(choice, None, None, same_images)
    comparable = choice.class_source == test.class_source != UNKNOWN_SOURCE
    count = len(choice.classes & test.classes) if comparable else None
    return SeenChoice(choice, count, len(test.classes), same_images)
