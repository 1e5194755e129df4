"""A split on disk: two lists of image ids."""

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
    """Write ``old.txt``, ``new.txt`` and ``split.json`` (how they were made) to a new folder.

    Returns:
        Images and classes of the old and of the new set.
    """
    sets = split(images.labels, scenario, fraction=fraction, seed=seed)
    counts: dict[str, tuple[int, int]] = {}
    with atomic_folder(out) as temporary:
        for name, indices in (("old", sets.old), ("new", sets.new)):
            chosen = images.select(indices)
            text = "".join(f"{image_id}\n" for image_id in chosen.ids)
            (temporary / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")
            counts[name] = (len(chosen), len(chosen.class_names))
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
