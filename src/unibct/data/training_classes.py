"""What a model has learnt from, and what was chosen on which images, kept with what it made.

A test on the same images, or on classes that a model was trained on, promises too much. So a model
and its embeddings keep ``TrainingClasses``, a score map or a share of queries its ``Choice``. Only
digests are kept: they have one size, and a folder of embeddings does not give away whom or what
its model was trained on.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Ints
from unibct.data.image_set import ImageSet, are_numbers, class_identities

_MODEL = "the model"  # in ``Choice.what``
_DIGITS = 16  # of a digest: among 10 million classes two agree by chance once in 400,000 times
UNKNOWN_SOURCE = "unknown"  # of classes that cannot be compared with those of any other set


@dataclass(frozen=True)
class Choice:
    """What was chosen, and on what; a test set is described in the same way."""

    what: str  # such as "the best epoch of the model was chosen"
    data: str | None = None  # the name of the images; None if they have none
    # Digests by which the same images are found again, in any order: of their ids and classes, and
    # of their vectors by the old model.
    images: frozenset[str] = frozenset()
    classes: frozenset[str] | None = None  # digests of their classes; None if not known
    class_source: str | None = None  # what numbered the classes, see ``ImageSet``

    def of_model(self, role: str) -> "Choice":
        """Return the same choice, said of the old or the new model."""
        return replace(self, what=self.what.replace(_MODEL, f"the {role} model"))

    def with_vectors(self, old_vectors: NDArray[Any]) -> "Choice":
        """Return the same choice, with a digest of the old model's vectors of its images."""
        rows = np.ascontiguousarray(old_vectors, dtype="<f4")
        return replace(self, images=self.images | {_unordered_digest(r.tobytes() for r in rows)})

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        classes = None if self.classes is None else sorted(self.classes)
        return vars(self) | {"images": sorted(self.images), "classes": classes}

    @staticmethod
    def of_json(content: Any) -> "Choice":
        """Return the choice from what ``as_json`` returned."""
        classes = None if content["classes"] is None else frozenset(content["classes"])
        images = frozenset(content["images"])
        return Choice(
            str(content["what"]), content["data"], images, classes, content["class_source"]
        )


ALPHA_OF_QUERIES = "α of the blended queries was chosen"
ALPHA_OF_WEIGHTS = f"α of {_MODEL}'s blended weights was chosen"
BEST_EPOCH = f"the best epoch of {_MODEL} was chosen"
SCORE_SCALE_MEASURED = f"the score scale of {_MODEL} was measured"
SCORE_MAP_FITTED = "the score map was fitted"
UNRECORDED = Choice(f"anything about {_MODEL} was chosen")  # earlier versions kept nothing


@dataclass(frozen=True)
class TrainingClasses:
    """The classes that a model was trained on."""

    digests: frozenset[str] = frozenset()  # of the classes' identities, see ``class_identities``
    sources: frozenset[str | None] = frozenset()  # what numbered them; None for real names
    complete: bool = True  # whether these are all classes; if not, some or all are unknown
    # What was chosen for the model on images that it was not trained on.
    choices: frozenset[Choice] = frozenset()

    def __post_init__(self) -> None:
        # Earlier versions took numbers for names.
        if None in self.sources and not self.digests.isdisjoint(_SMALL_NUMBERS):
            object.__setattr__(self, "sources", self.sources | {UNKNOWN_SOURCE})

    def __or__(self, other: "TrainingClasses") -> "TrainingClasses":
        """Return the classes that either has."""
        return TrainingClasses(
            self.digests | other.digests,
            self.sources | other.sources,
            self.complete and other.complete,
            self.choices | other.choices,
        )

    def named_as(self, class_source: str | None) -> bool:
        """Return whether the same class has the same name here and in a set.

        ``class_source`` is what numbered the set's classes, see ``ImageSet``.
        """
        return UNKNOWN_SOURCE not in self.sources and self.sources <= {class_source}

    @property
    def source(self) -> str | None:
        """What numbered all of the classes; ``UNKNOWN_SOURCE`` if that is not one thing."""
        return next(iter(self.sources)) if len(self.sources) == 1 else UNKNOWN_SOURCE

    def without(self, what: str) -> "TrainingClasses":
        """Return the same classes without the choices of a kind."""
        return replace(self, choices=frozenset(c for c in self.choices if c.what != what))

    def as_json(self) -> dict[str, Any]:
        """Return the content for a file."""
        choices = sorted(self.choices, key=lambda choice: (choice.what, sorted(choice.images)))
        return {
            "digests": sorted(self.digests),
            "sources": list(self.sources),
            "complete": self.complete,
            "choices": [choice.as_json() for choice in choices],
        }

    @staticmethod
    def of_json(content: Any) -> "TrainingClasses":
        """Return the classes from what ``as_json`` returned; of None, that nothing is known."""
        if content is None:
            return UNKNOWN_CLASSES
        choices = [UNRECORDED]
        if "choices" in content:
            choices = map(Choice.of_json, content["choices"])
        digests, sources = frozenset(content["digests"]), frozenset(content["sources"])
        return TrainingClasses(digests, sources, bool(content["complete"]), frozenset(choices))


def identity_digests(identities: Iterable[str]) -> frozenset[str]:
    """Return a digest for each identity of a class."""
    return frozenset(
        hashlib.sha256(identity.encode()).hexdigest()[:_DIGITS] for identity in identities
    )


_SMALL_NUMBERS = identity_digests(str(number) for number in range(10))
NO_CLASSES = TrainingClasses()
UNKNOWN_CLASSES = TrainingClasses(complete=False)


def training_classes(class_names: Sequence[str], class_source: str | None) -> TrainingClasses:
    """Return the training classes of a model; they are unknown if there are no names.

    ``class_source`` is what numbered the classes; None if the names are real names.
    """
    if not class_names:
        return UNKNOWN_CLASSES
    digests = identity_digests(class_identities(class_names, class_source))
    return TrainingClasses(digests, frozenset({known_source(class_names, class_source)}))


def known_source(class_names: Sequence[str], class_source: str | None) -> str | None:
    """Return what numbered classes, ``UNKNOWN_SOURCE`` for numbers of which nothing is known.

    Earlier versions did not record what numbered the classes of lists, tar files and vectors.
    """
    is_unknown = class_source is None and are_numbers(class_names)
    return UNKNOWN_SOURCE if is_unknown else class_source


def choice_on(what: str, images: ImageSet) -> Choice:
    """Return a choice that was made on an image set."""
    known = images.ids, images.labels, images.class_names, images.class_source
    return choice_on_rows(what, images.name, *known)


def choice_on_rows(
    what: str,
    data: str | None,
    ids: Sequence[str],
    labels: Ints,
    class_names: Sequence[str],
    class_source: str | None,
    *,
    among: Ints | None = None,
) -> Choice:
    """Return a choice that was made on images with classes.

    ``labels`` is (images,), indices into ``class_names``, some of which may have no image; the
    classes of the images at the places ``among`` count, by default all.
    """
    identities = class_identities(class_names, class_source)
    rows = (f"{i}\0{identities[int(label)]}".encode() for i, label in zip(ids, labels, strict=True))
    digests = frozenset({_unordered_digest(rows)})
    counted: list[int] = np.unique(labels if among is None else labels[among]).tolist()
    classes = training_classes([class_names[label] for label in counted], class_source)
    return Choice(what, data, digests, classes.digests, classes.source)


def _unordered_digest(rows: Iterable[bytes]) -> str:
    """Return a digest of rows that does not depend on their order."""
    digests = sorted(hashlib.blake2b(row, digest_size=16).digest() for row in rows)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:32]
