"""The five scenarios: how the new training set relates to the old one.

A scenario is a rule. A split is the result: the image indices of the old and of the new set.

=================  ================================  ===================================
scenario           old set                           new set
=================  ================================  ===================================
extended-data      30 % of the images of each class  all images
open-data          30 % of the images of each class  the other 70 % of the images
extended-class     all images of 30 % of the classes all images
open-class         all images of 30 % of the classes all images of the other classes
identical-data     30 % of the images of each class  the same images (larger network)
=================  ================================  ===================================
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import checked_labels, same_kind
from unibct.errors import UserError

DEFAULT_FRACTION = 0.3
DEFAULT_SEED = 666


@dataclass(frozen=True)
class Scenario:
    """A rule for a split.

    Attributes:
        sample: whether the old set is a sample of each class's images, or of the classes.
        new: whether the new set is all images, those outside the old set, or the old set itself.
    """

    sample: Literal["images", "classes"]
    new: Literal["all", "rest", "same"]


SCENARIOS: dict[str, Scenario] = {
    "extended-data": Scenario("images", "all"),
    "open-data": Scenario("images", "rest"),
    "extended-class": Scenario("classes", "all"),
    "open-class": Scenario("classes", "rest"),
    "identical-data": Scenario("images", "same"),
}


@dataclass(frozen=True)
class Split:
    """The old and the new training set.

    Attributes:
        old: sorted indices of the images in the old set.
        new: sorted indices of the images in the new set.
    """

    old: Any
    new: Any


@dataclass(frozen=True)
class HoldOut:
    """Training images and test images that have no class in common.

    Attributes:
        train: sorted indices of the images of the training classes.
        test: sorted indices of the images of the test classes.
    """

    train: Any
    test: Any


def find_scenario(name: str) -> Scenario:
    """Return the scenario called ``name``. The error for an unknown name lists all names."""
    if name not in SCENARIOS:
        raise UserError(f"unknown scenario {name!r}; choose one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def _exact_fraction(fraction: float, name: str = "fraction") -> Fraction:
    if not 0 < fraction < 1:
        raise UserError(f"{name} must lie between 0 and 1, not {fraction}")
    # 0.29 · 100 is 28.999… in floating point, so use the decimal number that the user wrote.
    return Fraction(str(fraction))


def old_images_per_class(
    class_sizes: NDArray[np.int64], fraction: float = DEFAULT_FRACTION
) -> NDArray[np.int64]:
    """Return how many images of each class the old set gets: max(1, floor(fraction · size)).

    Args:
        class_sizes: (classes,) number of images of each class.
        fraction: the share of the images in the old set.
    """
    exact = _exact_fraction(fraction)
    # Computed with Python integers: a fraction such as 1/3 has 16 digits and would overflow int64.
    sizes, inverse = np.unique(class_sizes, return_inverse=True)
    quota = [max(1, int(n) * exact.numerator // exact.denominator) for n in sizes]
    return np.array(quota, dtype=np.int64)[inverse]


def old_class_count(classes: int, fraction: float = DEFAULT_FRACTION) -> int:
    """Return how many classes the old set gets: floor(fraction · classes)."""
    exact = _exact_fraction(fraction)
    return classes * exact.numerator // exact.denominator


def split(
    labels: Any, scenario: str, *, fraction: float = DEFAULT_FRACTION, seed: int = DEFAULT_SEED
) -> Split:
    """Return the old and the new training set of a scenario.

    With the same ``fraction`` and ``seed``, the three data scenarios have the same old set, and so
    do the two class scenarios.

    Args:
        labels: (images,) the class of each image, integers.
        scenario: a name from ``SCENARIOS``.
        fraction: the share of the images, or of the classes, in the old set.
        seed: seed of the random sample.

    Returns:
        An object with ``old`` and ``new``: sorted int64 indices, as tensors if ``labels`` is one.
    """
    rule = find_scenario(scenario)
    given_labels = labels
    labels = checked_labels(labels)
    if not len(labels):
        raise UserError("labels is empty: there is nothing to split")
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rng = _rng(seed)
    if rule.sample == "images":
        old = sample_images(labels, old_images_per_class(sizes, fraction), rng)
    else:
        count = old_class_count(len(sizes), fraction)
        if count == 0:
            raise UserError(
                f"{fraction} of {len(sizes)} classes is no class at all: "
                f"{scenario} needs more classes or a larger fraction"
            )
        old = _sample_classes(labels, len(sizes), count, rng)
    new = {"all": np.ones_like(old), "rest": ~old, "same": old}[rule.new]
    if not new.any():
        raise UserError(f"{scenario} leaves no image for the new set: every class has one image")
    return Split(
        same_kind(np.flatnonzero(old), given_labels), same_kind(np.flatnonzero(new), given_labels)
    )


def hold_out(
    labels: Any, fraction: float = DEFAULT_FRACTION, *, seed: int = DEFAULT_SEED
) -> HoldOut:
    """Set test classes aside that no model is trained on.

    To split the training classes further, call ``split`` with the labels of the training images.

    Args:
        labels: (images,) the class of each image, integers.
        fraction: the share of the classes that are test classes.
        seed: chooses the test classes.

    Returns:
        An object with ``train`` and ``test``: sorted int64 indices, as tensors if ``labels`` is
        one.
    """
    _exact_fraction(fraction, "hold-out")
    given_labels = labels
    labels = checked_labels(labels)
    if not len(labels):
        raise UserError("labels is empty: there is nothing to hold out")
    names, labels = np.unique(labels, return_inverse=True)
    count = old_class_count(len(names), fraction)
    if min(count, len(names) - count) < 2:
        raise UserError(
            f"{fraction} of {len(names)} classes are {count} for testing and "
            f"{len(names) - count} for training: each needs two or more"
        )
    test = _sample_classes(labels, len(names), count, _rng(seed))
    return HoldOut(
        same_kind(np.flatnonzero(~test), given_labels),
        same_kind(np.flatnonzero(test), given_labels),
    )


def nested_split(labels: Any, fraction: float, *, seed: int = DEFAULT_SEED) -> Any:
    """Return the sorted indices of a random ``fraction`` of each class's images.

    With the same seed, a larger fraction contains all images of a smaller one, and the fraction
    0.3 is the old set of extended-data. The fraction 1 is all images.
    """
    given_labels = labels
    labels = checked_labels(labels)
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota = sizes if fraction == 1 else old_images_per_class(sizes, fraction)
    sample = sample_images(labels, quota, _rng(seed))
    return same_kind(np.flatnonzero(sample), given_labels)


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    return np.random.default_rng(seed)


def _sample_classes(
    labels: NDArray[np.int64], classes: int, count: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw ``count`` of the classes 0…C-1, and return an (images,) mask of their images."""
    is_drawn = np.zeros(classes, dtype=bool)
    is_drawn[rng.permutation(classes)[:count]] = True
    return is_drawn[labels]


def sample_images(
    labels: NDArray[np.int64], quota: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw ``quota[c]`` images of each class c without replacement.

    Args:
        labels: (images,) the classes, 0…C-1.
        quota: (classes,) how many images to draw.
        rng: the source of the random numbers.

    Returns:
        (images,) a mask of the drawn images.
    """
    order = np.lexsort((rng.random(len(labels)), labels))
    sizes = np.bincount(labels)
    rank_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros(len(labels), dtype=bool)
    mask[order] = rank_in_class < quota[labels[order]]
    return mask
