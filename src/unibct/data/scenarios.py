"""The five scenarios: how the new training set relates to the old one, and their lists on disk.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import checked_labels, same_kind
from unibct.errors import UserError
from unibct.files import atomic_folder, write_json
from unibct.registry import Registry

if TYPE_CHECKING:
    from unibct.data.image_set import ImageSet

DEFAULT_FRACTION = 0.3
DEFAULT_SEED = 666


@dataclass(frozen=True)
class Scenario:
    """A rule for a split."""

    sample: Literal["images", "classes"]  # the old set: a sample of each class, or of the classes
    new: Literal["all", "rest", "same"]  # all images, those outside the old set, or the old set


SCENARIOS: Registry[Scenario] = Registry(
    "scenario",
    {
        "extended-data": Scenario("images", "all"),
        "open-data": Scenario("images", "rest"),
        "extended-class": Scenario("classes", "all"),
        "open-class": Scenario("classes", "rest"),
        "identical-data": Scenario("images", "same"),
    },
)


class Split(NamedTuple):
    """The old and the new training set: sorted indices of their images."""

    old: Any
    new: Any


class HoldOut(NamedTuple):
    """Sorted indices of training and of test images, which have no class in common."""

    train: Any
    test: Any


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
    rule = SCENARIOS.find(scenario)
    classes, sizes = _counted(labels, "split")
    rng = _rng(seed)
    if rule.sample == "images":
        old = sample_images(classes, _quota(sizes, fraction), rng)
    else:
        count = _share(len(sizes), fraction)
        if count == 0:
            raise UserError(
                f"{fraction} of {len(sizes)} classes is no class at all: "
                f"{scenario} needs more classes or a larger fraction"
            )
        old = _sample_classes(classes, len(sizes), count, rng)
    new = {"all": np.ones_like(old), "rest": ~old, "same": old}[rule.new]
    if not new.any():
        raise UserError(f"{scenario} leaves no image for the new set: every class has one image")
    return Split(*(same_kind(np.flatnonzero(mask), labels) for mask in (old, new)))


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
    classes, sizes = _counted(labels, "hold out")
    count = _share(len(sizes), fraction, name="hold_out")
    if min(count, len(sizes) - count) < 2:
        raise UserError(
            f"{fraction} of {len(sizes)} classes are {count} for testing and "
            f"{len(sizes) - count} for training: each needs two or more"
        )
    test = _sample_classes(classes, len(sizes), count, _rng(seed))
    return HoldOut(*(same_kind(np.flatnonzero(mask), labels) for mask in (~test, test)))


def nested_split(labels: Any, fraction: float, *, seed: int = DEFAULT_SEED) -> Any:
    """Return the sorted indices of a random ``fraction`` of each class's images.

    With the same seed, a larger fraction contains all images of a smaller one, and the fraction
    0.3 is the old set of extended-data. The fraction 1 is all images.
    """
    _, classes, sizes = np.unique(checked_labels(labels), return_inverse=True, return_counts=True)
    quota = sizes if fraction == 1 else _quota(sizes, fraction)
    return same_kind(np.flatnonzero(sample_images(classes, quota, _rng(seed))), labels)


def sample_images(
    labels: NDArray[np.int64], quota: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw ``quota[c]`` images of each class c without replacement.

    ``labels`` is (images,), the classes 0…C-1, and ``quota`` (classes,). Returns (images,), a mask
    of the drawn images.
    """
    order = np.lexsort((rng.random(len(labels)), labels))
    sizes = np.bincount(labels)
    rank_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros(len(labels), dtype=bool)
    mask[order] = rank_in_class < quota[labels[order]]
    return mask


def _sample_classes(
    labels: NDArray[np.int64], classes: int, count: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw ``count`` of the classes 0…C-1, and return an (images,) mask of their images."""
    is_drawn = np.zeros(classes, dtype=bool)
    is_drawn[rng.permutation(classes)[:count]] = True
    return is_drawn[labels]


def _counted(labels: Any, purpose: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (images,) the classes counted from 0, and (classes,) how many images each has."""
    labels = checked_labels(labels)
    if not len(labels):
        raise UserError(f"labels is empty: there is nothing to {purpose}")
    return np.unique(labels, return_inverse=True, return_counts=True)[1:]


def _quota(class_sizes: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return how many images of each class the old set gets: max(1, floor(fraction · size))."""
    sizes, inverse = np.unique(class_sizes, return_inverse=True)
    return np.array([max(1, _share(int(size), fraction)) for size in sizes])[inverse]


def _share(count: int, fraction: float, *, name: str = "fraction") -> int:
    """Return floor(fraction · count), exactly.

    0.29 · 100 is 28.999… in floating point, so this takes the decimal number that the user wrote,
    and Python's integers: a fraction such as 1/3 has 16 digits and would overflow int64.
    """
    if not 0 < fraction < 1:
        raise UserError(f"{name} must lie between 0 and 1, not {fraction}")
    exact = Fraction(str(fraction))
    return count * exact.numerator // exact.denominator


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    return np.random.default_rng(seed)


_hold_out = hold_out  # below, an option has this name


def write_split(
    images: "ImageSet",
    scenario: str | None,
    out: Path,
    *,
    fraction: float = DEFAULT_FRACTION,
    hold_out: float | None = None,
    seed: int = DEFAULT_SEED,
) -> dict[str, tuple[int, int]]:
    """Split an image set, and write the lists of ids to a new folder.

    With a scenario, the folder contains ``old.txt`` and ``new.txt``. With ``hold_out``, it
    contains ``train.txt`` and ``test.txt``, and the scenario divides the training images only.
    ``split.json`` records the options, which are those of ``split`` and ``hold_out``. Returns the
    number of images and of classes for each list.
    """
    from unibct.data.image_set import require_outside

    if scenario is None and hold_out is None:
        raise UserError("there is nothing to split: give a scenario, hold_out or both")
    require_outside(images, out)
    subsets: dict[str, ImageSet] = {}
    if hold_out is not None:
        parts = _hold_out(images.labels, hold_out, seed=seed)
        subsets = {"train": images.select(parts.train), "test": images.select(parts.test)}
    if scenario is not None:
        training_images = subsets.get("train", images)
        sets = split(training_images.labels, scenario, fraction=fraction, seed=seed)
        old, new = training_images.select(sets.old), training_images.select(sets.new)
        subsets = {"old": old, "new": new} | subsets
    counts = {name: (len(subset), len(subset.class_names)) for name, subset in subsets.items()}
    description: dict[str, Any] = {
        "scenario": scenario,
        "fraction": fraction,
        "seed": seed,
        "data": images.name,
        "counts": {k: {"images": v[0], "classes": v[1]} for k, v in counts.items()},
    }
    with atomic_folder(out, alone=True) as temporary:
        for name, subset in subsets.items():
            text = "".join(f"{image_id}\n" for image_id in subset.ids)
            (temporary / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")
        held_out = {} if hold_out is None else {"hold_out": hold_out}
        write_json(temporary / "split.json", description | held_out)
    return counts
