"""Splits on disk: lists of image ids."""

from pathlib import Path
from typing import Any

from unibct.data.image_set import ImageSet, require_outside
from unibct.data.scenarios import DEFAULT_FRACTION, DEFAULT_SEED, split
from unibct.data.scenarios import hold_out as hold_out_classes
from unibct.errors import UserError
from unibct.files import atomic_folder, write_json


def write_split(
    images: ImageSet,
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
    ``split.json`` records the options.

    Args:
        images: the set.
        scenario: a name from ``SCENARIOS``; None for a hold-out alone.
        out: the new folder.
        fraction: the share of the images or classes in the old set.
        hold_out: the share of the classes that are test classes.
        seed: chooses the images and classes.

    Returns:
        For each list, the number of images and the number of classes.
    """
    if scenario is None and hold_out is None:
        raise UserError("there is nothing to split: give --scenario, --hold-out or both")
    require_outside(images, out)
    subsets: dict[str, ImageSet] = {}
    if hold_out is not None:
        parts = hold_out_classes(images.labels, hold_out, seed=seed)
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
