"""The five ways in which a new training set can relate to the old one.

A scenario is a rule; a split is the pair of image index sets that it yields.

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
    """What is sampled for the old set, and what the new set is made of."""

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
    """Sorted indices of the images in the old and in the new training set."""

    old: Any
    new: Any


def find_scenario(name: str) -> Scenario:
    """The scenario called ``name``, or an error that lists the names there are."""
    if name not in SCENARIOS:
        raise UserError(f"unknown scenario {name!r}; choose one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def _exact_fraction(fraction: float) -> Fraction:
    if not 0 < fraction < 1:
        raise UserError(f"fraction must lie between 0 and 1, not {fraction}")
    # 0.29 · 100 is 28.999… in floating point: take the decimal that the user wrote.
    return Fraction(str(fraction))


def old_images_per_class(
    class_sizes: NDArray[np.int64], fraction: float = DEFAULT_FRACTION
) -> NDArray[np.int64]:
    """max(1, floor(fraction · size)) of each class: how many of its images the old set takes."""
    exact = _exact_fraction(fraction)
    # In Python's integers: 1/3 is a fraction with 16 digits, which would overflow int64.
    sizes, inverse = np.unique(class_sizes, return_inverse=True)
    quota = [max(1, int(n) * exact.numerator // exact.denominator) for n in sizes]
    return np.array(quota, dtype=np.int64)[inverse]


def old_class_count(classes: int, fraction: float = DEFAULT_FRACTION) -> int:
    """floor(fraction · classes): how many classes the old set takes."""
    exact = _exact_fraction(fraction)
    return classes * exact.numerator // exact.denominator


def split(
    labels: Any, scenario: str, *, fraction: float = DEFAULT_FRACTION, seed: int = DEFAULT_SEED
) -> Split:
    """The old and the new training set of a scenario.

    The three data scenarios share one old set, and the two class scenarios another, as long as
    ``fraction`` and ``seed`` are the same.

    Args:
        labels: (images,) the class of each image, integers.
        scenario: a name from ``SCENARIOS``.
        fraction: the share of the images, or of the classes, in the old set.
        seed: chooses the sample.

    Returns:
        An object with ``old`` and ``new``: sorted int64 index arrays, of the kind of ``labels``.
    """
    rule = find_scenario(scenario)
    given = labels
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
        chosen = np.zeros(len(sizes), dtype=bool)
        chosen[rng.permutation(len(sizes))[:count]] = True
        old = chosen[labels]
    new = {"all": np.ones_like(old), "rest": ~old, "same": old}[rule.new]
    if not new.any():
        raise UserError(f"{scenario} leaves no image for the new set: every class has one image")
    return Split(same_kind(np.flatnonzero(old), given), same_kind(np.flatnonzero(new), given))


def nested_split(labels: Any, fraction: float, *, seed: int = DEFAULT_SEED) -> Any:
    """Sorted indices of ``fraction`` of each class's images; a larger fraction holds a smaller's.

    The fraction 1 takes all; with the same seed, 0.3 is the old set of extended-data.
    """
    given = labels
    labels = checked_labels(labels)
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota = sizes if fraction == 1 else old_images_per_class(sizes, fraction)
    drawn = sample_images(labels, quota, _rng(seed))
    return same_kind(np.flatnonzero(drawn), given)


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    return np.random.default_rng(seed)


def sample_images(
    labels: NDArray[np.int64], quota: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """A mask of ``quota[c]`` images of each class c, drawn without replacement."""
    order = np.lexsort((rng.random(len(labels)), labels))
    sizes = np.bincount(labels)
    rank_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros(len(labels), dtype=bool)
    mask[order] = rank_in_class < quota[labels[order]]
    return mask
