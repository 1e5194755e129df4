"""Which methods a benchmark compares, by the name of a group. Readable without torch."""

from dataclasses import dataclass

from unibct.maps import MAPS
from unibct.methods import DEFAULT_METHOD, METHODS

PAPER = "paper"
PAPER_METHODS = ("none", "regress", "contrast", "bct", "unibct-centroid", "unibct-drop", "unibct")
DEFAULT_METHODS = (*PAPER_METHODS, DEFAULT_METHOD)
ALL_METHODS = (*METHODS, *MAPS)
CHAIN_METHODS = ("unibct", DEFAULT_METHOD)


@dataclass(frozen=True)
class MethodGroup:
    """Methods that can be named together.

    Attributes:
        methods: names from ``METHODS`` and ``MAPS``.
        meaning: a few words for help texts.
    """

    methods: tuple[str, ...]
    meaning: str


GROUPS: dict[str, MethodGroup] = {
    "all": MethodGroup(ALL_METHODS, "all of these"),
    PAPER: MethodGroup(PAPER_METHODS, "those of the paper"),
}


def describe_groups() -> str:
    """Return the groups with their meanings, for help texts."""
    return ", ".join(f"{name} ({group.meaning})" for name, group in GROUPS.items())
