"""Splits on disk: two lists of image ids."""

from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.data.scenarios import DEFAULT_FRACTION, DEFAULT_SEED, split
from unibct.files import atomic_folder, write_json


def write_split(
    images: ImageSet,
    scenario: str,
    out: Path,
    *,
    fraction: float = DEFAULT_FRACTION,
    seed: int = DEFAULT_SEED,
) -> dict[str, tuple[int, int]]:
    """Split an image set, and write the lists of ids to a new folder.

    The folder contains ``old.txt``, ``new.txt`` and ``split.json``, which records the options.

    Returns:
        For ``old`` and ``new``, the number of images and the number of classes.
    """
    index_sets = split(images.labels, scenario, fraction=fraction, seed=seed)
    counts: dict[str, tuple[int, int]] = {}
    with atomic_folder(out) as temporary:
        for name, indices in (("old", index_sets.old), ("new", index_sets.new)):
            subset = images.select(indices)
            text = "".join(f"{image_id}\n" for image_id in subset.ids)
            (temporary / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")
            counts[name] = (len(subset), len(subset.class_names))
        write_json(
            temporary / "split.json",
            {
                "scenario": scenario,
                "fraction": fraction,
                "seed": seed,
                "data": images.name,
                "counts": {k: {"images": v[0], "classes": v[1]} for k, v in counts.items()},
            },
        )
    return counts
