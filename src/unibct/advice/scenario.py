"""Which scenario two training sets are in, judged by their classes and the ids of their images."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from unibct.data.scenarios import SCENARIOS


@dataclass(frozen=True)
class FoundScenario:
    """How a new training set relates to the old one.

    Attributes:
        names: the scenarios that fit, from ``SCENARIOS``; several if the ids of the old images
            are needed to tell them apart, none if it is not known which classes are the same.
        why: the reason in words.
        old_classes: number of classes of the old set; None if that is not known.
        new_classes: number of classes of the new set.
        shared_classes: number of classes that both have; None if that is not known.
    """

    names: tuple[str, ...]
    why: str
    old_classes: int | None
    new_classes: int
    shared_classes: int | None

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "scenarios": list(self.names),
            "why": self.why,
            "old_classes": self.old_classes,
            "new_classes": self.new_classes,
            "shared_classes": self.shared_classes,
        }


def find_scenario_of(
    old_classes: Collection[str],
    new_classes: Collection[str],
    old_ids: Collection[str] | None,
    new_ids: Collection[str],
) -> FoundScenario:
    """Return the scenario of two training sets.

    Args:
        old_classes: what tells each class of the old set from all others.
        new_classes: the same of the new set.
        old_ids: the ids of the old images; None if only the old model is given.
        new_ids: the ids of the new images.
    """
    old, new = set(old_classes), set(new_classes)
    shared, added = old & new, new - old
    if not shared:
        names, why = ("open-class",), "no class is in both sets"
    elif added and shared == old:
        names, why = ("extended-class",), f"{len(added):,} classes are new, and no old one is gone"
    elif added:
        names = ("open-class",)
        why = f"{len(added):,} classes are new and {len(old - new):,} old ones are gone"
    else:
        names, why = _same_classes(old_ids, new_ids)
    assert set(names) <= set(SCENARIOS)
    return FoundScenario(names, why, len(old), len(new), len(shared))


def unknown_scenario(old_classes: int | None, new_classes: int, why: str) -> FoundScenario:
    """Return the answer for sets of which it is not known which classes are the same."""
    return FoundScenario((), why, old_classes, new_classes, None)


def _same_classes(
    old_ids: Collection[str] | None, new_ids: Collection[str]
) -> tuple[tuple[str, ...], str]:
    """Tell the scenarios without new classes apart by the images."""
    if old_ids is None:
        every = ("extended-data", "open-data", "identical-data")
        return every, "no class is new; give --old-data to tell whether the images are the same"
    old, new = set(old_ids), set(new_ids)
    shared = len(old & new)
    if old == new:
        return ("identical-data",), "the same images; give the new model a larger network"
    if shared == len(old):
        return ("extended-data",), f"all {shared:,} old images and {len(new) - shared:,} more"
    if shared == len(new):
        return ("open-data",), f"no new image: {shared:,} of the {len(old):,} old images"
    why = f"{len(new) - shared:,} other images of classes that are known"
    return ("open-data",), why + (f", and {shared:,} of the old images" if shared else "")
